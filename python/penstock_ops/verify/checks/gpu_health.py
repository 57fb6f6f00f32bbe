"""What GPUs report of their own health: memory errors, row remapping, and the action that the
driver recommends.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock_ops.verify.checks import nvidia
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.nvidia import Gpu, unreported
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.expected import of_node
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.needs import Needs

ACTIONS = {
    "Reset": "nvidia-smi --gpu-reset, after its processes have ended",
    "Reboot": "reboot the node",
    "Drain P2P": "end processes that use peer-to-peer copies with this GPU",
    "Drain and Reset": "end all processes, then nvidia-smi --gpu-reset",
}
"""Words of the driver, and the remedy."""


def judge_ecc(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    for gpu in nvidia.each(check, node, needs):
        yield gpu if isinstance(gpu, Finding) else _ecc(check, node, gpu)


def _ecc(check: NodeCheck, node: Snapshot, gpu: Gpu) -> Finding:
    enabled = gpu.element.flag("ecc_mode/current_ecc", "Enabled", "Disabled")
    if enabled is None:
        return unreported(check, node, gpu, "ECC")
    if not enabled:
        return check.finding(
            node,
            Status.WARN,
            "ECC is off",
            device=gpu.bus_id,
            cause="errors in memory are not detected, and change results",
            remedy="nvidia-smi --ecc-config=1, then reset",
        )
    exceeded = _threshold(gpu)
    stored = _uncorrectable(gpu, "aggregate", "sram")
    now = _uncorrectable(gpu, "volatile", "sram") + _uncorrectable(gpu, "volatile", "dram")
    if exceeded or stored > of_node("sram_uncorrectable").value:
        return check.finding(
            node,
            Status.FAIL,
            f"{stored} uncorrectable errors of its SRAM so far",
            device=gpu.bus_id,
            cause="the driver's limit for replacement is exceeded" if exceeded else "worn SRAM",
            remedy="run NVIDIA's field diagnostic, and replace the GPU",
        )
    if now:
        return check.finding(
            node,
            Status.WARN,
            f"{now} uncorrectable errors since the driver was loaded",
            device=gpu.bus_id,
            cause="processes on this GPU have lost data",
            remedy="reset the GPU; replace it if errors return",
        )
    return check.finding(node, Status.PASS, "no uncorrectable error", device=gpu.bus_id)


def _threshold(gpu: Gpu) -> bool:
    """Whether the driver reports its limit of SRAM errors as exceeded; drivers before 550 do not
    have the field.
    """
    path = "ecc_errors/aggregate/sram_threshold_exceeded"
    return gpu.element.find(path) is not None and bool(gpu.element.flag(path))


def _uncorrectable(gpu: Gpu, period: str, memory: str) -> int:
    """Sum of the counters `MEMORY_uncorrectable...`, of which SRAM has two in newer drivers."""
    errors = gpu.element.get(f"ecc_errors/{period}")
    names = [each.tag for each in errors.children if each.tag.startswith(f"{memory}_uncorrectable")]
    counts = [errors.count(name) for name in names]
    if not counts or None in counts:
        raise ParseError(errors.line, errors.tag, f"numbers as {memory}_uncorrectable")
    return sum(filter(None, counts))


def judge_remapping(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    for gpu in nvidia.each(check, node, needs):
        yield gpu if isinstance(gpu, Finding) else _remapping(check, node, gpu)


def _remapping(check: NodeCheck, node: Snapshot, gpu: Gpu) -> Finding:
    rows = gpu.element.get("remapped_rows")
    if rows.text == nvidia.ABSENT:
        return unreported(check, node, gpu, "row remapping")
    failure = rows.flag("remapped_row_failure")
    pending = rows.flag("remapped_row_pending")
    remapped = rows.count("remapped_row_unc")
    if failure is None or pending is None or remapped is None:
        return unreported(check, node, gpu, "row remapping")
    if failure:
        return check.finding(
            node,
            Status.FAIL,
            "a row could not be remapped",
            device=gpu.bus_id,
            cause="a bank of the memory has no spare row left",
            remedy="replace the GPU",
        )
    if pending:
        return check.finding(
            node,
            Status.FAIL,
            "a remapped row awaits a reset",
            device=gpu.bus_id,
            cause="the faulty row is in use until the GPU is reset",
            remedy="end its processes, then nvidia-smi --gpu-reset",
        )
    return check.measured(
        node,
        remapped,
        of_node("remapped_rows").limit(is_ceiling=True),
        "rows remapped after uncorrectable errors",
        device=gpu.bus_id,
        cause="worn memory",
        remedy="replace the GPU",
    )


def judge_recovery(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    for gpu in nvidia.each(check, node, needs):
        yield gpu if isinstance(gpu, Finding) else _recovery(check, node, gpu)


def _recovery(check: NodeCheck, node: Snapshot, gpu: Gpu) -> Finding:
    action = gpu.element.find("gpu_recovery_action")
    if action is None:
        return check.finding(
            node,
            Status.SKIPPED,
            "this driver has no recovery action; later ones do",
            device=gpu.bus_id,
        )
    if action.text == "None":
        return check.finding(node, Status.PASS, "no action is due", device=gpu.bus_id)
    if action.text not in ACTIONS:
        raise ParseError(action.line, action.text, f"None, {', '.join(ACTIONS)}")
    return check.finding(
        node,
        Status.FAIL,
        f"the driver recommends: {action.text}",
        device=gpu.bus_id,
        cause="a fault that the driver cannot clear; the check xid may name it",
        remedy=ACTIONS[action.text],
    )


ECC = NodeCheck("ecc", "uncorrectable memory errors", Layer.DEVICE, nvidia.SOURCES, judge_ecc)
REMAPPING = NodeCheck(
    "row-remapping",
    "rows of GPU memory that were replaced, or could not be",
    Layer.DEVICE,
    nvidia.SOURCES,
    judge_remapping,
)
RECOVERY = NodeCheck(
    "recovery",
    "action that the driver recommends: reset, reboot, drain",
    Layer.DEVICE,
    nvidia.SOURCES,
    judge_recovery,
)
