"""Limits of the process: locked memory and open files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.finding import Bound, Finding, Layer
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Files

LOCKED, DESCRIPTORS = "Max locked memory", "Max open files"
ROW = re.compile(r"^(Max [a-z ]+?) {2,}(\d+|unlimited) +(\d+|unlimited) +(\w+) *$")
OPEN_FILES = 65536
"""Descriptors: sockets of clients and ranks, and open chunks; the limit of the units that
`penstock deploy systemd` writes.
"""


def parse(text: str) -> dict[str, float]:
    """Soft limits by name, such as "Max open files"; unlimited is infinity. ParseError if a
    line has another form.
    """
    found: dict[str, float] = {}
    for number, line in enumerate(text.splitlines()[1:], 2):
        row = ROW.match(line)
        # The rows of priorities have no unit.
        if row is None and not re.match(r"^Max (nice|realtime) priority +\d+ +\d+ *$", line):
            raise ParseError(number, line, "a limit with its soft and hard value")
        if row and _value(row[2]) > _value(row[3]):
            raise ParseError(number, line, "a soft limit up to the hard one")
        if row and row[1] in found:
            raise ParseError(number, line, "each limit once")
        if row:
            found[row[1]] = _value(row[2])
    for name in (LOCKED, DESCRIPTORS):
        if name not in found:
            raise ParseError(1, text.partition("\n")[0], f"a row {name}")
    return found


def _value(text: str) -> float:
    return float("inf" if text == "unlimited" else text)


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    source = node["limits"]
    if not source.is_present:
        yield check.absent(node, source, is_needed=True)
        return
    limits = parse(next(iter(source.files.values())))
    if needs.fabric_resources:
        bound = Bound(float("inf"), float("inf"), "bytes", formula="RDMA pins its buffers")
        yield check.measured(
            node,
            limits[LOCKED],
            bound,
            "locked memory",
            cause="RDMA cannot register its buffers",
            remedy="capability IPC_LOCK in the pod, or LimitMEMLOCK=infinity in the unit",
        )
    yield check.measured(
        node,
        limits[DESCRIPTORS],
        Bound(None, OPEN_FILES, "descriptors"),
        "open files",
        cause="many clients and chunks need more descriptors",
        remedy=f"ulimit -n {OPEN_FILES}, or LimitNOFILE={OPEN_FILES} in the unit",
    )


CHECK = NodeCheck(
    "limits",
    "locked memory and open files of a process",
    Layer.HOST,
    (Files("limits", "/proc/self/limits"),),
    judge,
)
