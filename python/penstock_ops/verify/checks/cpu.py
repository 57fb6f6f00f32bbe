"""CPUs of this process: quota, frequency policy, and the permission to use AMX."""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock_ops.verify.checks import pci
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import fields, measurement, numbered, only_line, whole
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Evidence, Snapshot
from penstock_ops.verify.finding import Bound, Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Files, Growth, Measurement

HOST = Measurement("host", ("host",), 30.0)
"""Sizes and permissions that only calls of the kernel give."""
STATISTICS = Growth("cpu-statistics", "/sys/fs/cgroup/cpu.stat")
GOVERNORS = Files("governor", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
DRIVERS = Files("frequency-driver", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_driver")
PREFERENCES = Files(
    "energy-preference", "/sys/devices/system/cpu/cpu*/cpufreq/energy_performance_preference"
)
WORD = re.compile(r"[a-z0-9_-]{1,40}")
STATISTIC = re.compile(r"([a-z_.]+) (\d+)")
FAST_GOVERNORS = {"performance", "schedutil", "ondemand", "conservative"}
SELF_GOVERNED = {"intel_pstate", "amd-pstate-epp"}
"""Drivers under which the hardware chooses the frequency, and `powersave` is not slow."""


def judge_quota(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    source = node[HOST.name]
    if not source.is_present:
        yield check.absent(node, source, is_needed=needs.threads > 0)
        return
    found = measurement(source.text, "cpus", "cpus_in_mask")
    if found["cpus"] > found["cpus_in_mask"]:
        raise ParseError(1, source.text.strip(), "cpus at most cpus_in_mask")
    bound = Bound(needs.threads or None, found["cpus_in_mask"], "CPUs", formula="affinity mask")
    yield check.measured(
        node,
        found["cpus"],
        bound,
        "CPUs by affinity mask and quota",
        cause="threads on all CPUs of the mask use up the quota, then stall",
        remedy="remove the CPU limit of the pod, or set a cpuset of as many CPUs",
    )
    begin, end = node[STATISTICS.name], node[f"{STATISTICS.name}.end"]
    if begin.is_present and end.is_present:
        yield from _throttled(check, node, begin, end)


def _throttled(
    check: NodeCheck, node: Snapshot, begin: Evidence, end: Evidence
) -> Iterator[Finding]:
    before, after = _periods(begin), _periods(end)
    if before is None or after is None:
        return
    if after < before:
        raise ParseError(1, str(after), f"at least {before} as nr_throttled")
    yield check.measured(
        node,
        after - before,
        Bound(None, 0, "periods", is_ceiling=True),
        "throttled by the CPU quota during the run",
        cause="the quota is lower than the load",
        remedy="remove the CPU limit of the pod, or raise it",
    )


def _periods(evidence: Evidence) -> int | None:
    """Periods of the quota in which threads were stopped; None if the cgroup has no quota."""
    found: dict[str, int] = {}
    for number, line in numbered(next(iter(evidence.files.values()))):
        match = fields(line, number, STATISTIC, "a name and a number")
        found[match[1]] = whole(match[2], number)
    if ("nr_periods" in found) != ("nr_throttled" in found):
        raise ParseError(1, ", ".join(found), "nr_periods and nr_throttled")
    return found.get("nr_throttled")


def judge_frequency(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    source = node[GOVERNORS.name]
    if not source.is_present:
        summary = "no frequency policy here: a virtual machine, or the firmware's own"
        yield check.finding(node, Status.SKIPPED, summary)
        return
    governors, drivers, preferences = (
        {path.split("/")[5]: _word(path, text) for path, text in node[each.name].files.items()}
        for each in (GOVERNORS, DRIVERS, PREFERENCES)
    )
    slow = [
        name
        for name, governor in governors.items()
        if _is_slow(governor, drivers.get(name, ""), preferences.get(name, ""))
    ]
    if not slow:
        words = ", ".join(sorted(set(governors.values())))
        yield check.finding(node, Status.PASS, f"governor {words}")
        return
    yield check.finding(
        node,
        Status.WARN,
        f"{len(slow)} CPUs save power: {governors[slow[0]]}",
        device=slow[0],
        cause="they run below their highest frequency",
        remedy="cpupower frequency-set -g performance",
    )


def _is_slow(governor: str, driver: str, preference: str) -> bool:
    if driver in SELF_GOVERNED:
        return preference == "power"
    return governor not in FAST_GOVERNORS


def _word(path: str, text: str) -> str:
    return fields(only_line(text, path), 1, WORD, "a word")[0]


def judge_amx(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    cpus, host = node[pci.CPUS.name], node[HOST.name]
    if not cpus.is_present:
        yield check.absent(node, cpus, is_needed=False)
        return
    if not re.search(r"^flags\s*:.* amx_tile( |$)", next(iter(cpus.files.values())), re.MULTILINE):
        yield check.finding(node, Status.SKIPPED, "the CPU has no AMX")
        return
    if not host.is_present:
        yield check.absent(node, host, is_needed=False)
        return
    if measurement(host.text, "amx_error")["amx_error"] == 0:
        yield check.finding(node, Status.PASS, "AMX is permitted")
        return
    yield check.finding(
        node,
        Status.WARN,
        "the CPU has AMX, the kernel refuses it to this process",
        cause="a seccomp profile blocks arch_prctl, or the kernel is older than 5.16",
        remedy="allow arch_prctl in the seccomp profile; without it, AVX-512 computes",
    )


QUOTA = NodeCheck(
    "cpu-quota", "CPUs by affinity and quota", Layer.HOST, (HOST, STATISTICS), judge_quota
)
FREQUENCY = NodeCheck(
    "frequency",
    "frequency policy of the CPUs",
    Layer.HOST,
    (GOVERNORS, DRIVERS, PREFERENCES),
    judge_frequency,
)
AMX = NodeCheck("amx", "permission to use AMX", Layer.HOST, (pci.CPUS, HOST), judge_amx)
