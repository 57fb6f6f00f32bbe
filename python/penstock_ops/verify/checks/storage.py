"""Rates of storage: directories of weights and of disk tiers, and remote KV stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import measurement
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.finding import Bound, Finding, Layer, Status
from penstock_ops.verify.needs import WEIGHTS, Needs
from penstock_ops.verify.sources import Measurement, Source


def readings(needs: Needs) -> Iterable[Source]:
    for use, path in needs.directories.items():
        yield Measurement(f"read-rate {use}", ("read-rate", path), 60.0)


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    if WEIGHTS not in needs.directories:
        status = Status.UNKNOWN if "storage_gb_per_s" in needs.bounds else Status.SKIPPED
        yield check.finding(
            node,
            status,
            "the directory of the weights is not given",
            remedy="--weights DIR, as the server will see it",
        )
    for use, path in needs.directories.items():
        yield _rate(check, node, needs, use, path)


def _rate(check: NodeCheck, node: Snapshot, needs: Needs, use: str, path: str) -> Finding:
    source = node[f"read-rate {use}"]
    if not source.is_present:
        return check.absent(node, source, is_needed=needs.is_planned)
    found = measurement(source.text, "gb_per_s", "bytes", "is_direct")
    if not found["bytes"]:
        return check.finding(
            node,
            Status.SKIPPED,
            "nothing to read: files of 1 MiB or more",
            device=path,
            remedy="copy the weights there first",
        )
    name = "storage_gb_per_s" if use == WEIGHTS else f"tier_{use}_gb_per_s"
    way = "past the page cache" if found["is_direct"] else "after dropping pages from the cache"
    return check.measured(
        node,
        found["gb_per_s"],
        needs.bound(name, "GB/s"),
        f"reads of {use}, {way}, {found['bytes'] / 1e9:.2f} GB",
        device=path,
        cause="the volume is slower than planned, or other readers share it",
        remedy="a faster volume or a local copy; NFS with nconnect=8; a longer planned start",
    )


def stores(needs: Needs) -> Iterable[Source]:
    for number in range(len(needs.stores)):
        yield Measurement(f"store {number}", ("store", needs.config, str(number)), 60.0)


def judge_stores(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    if not needs.stores:
        yield check.finding(node, Status.SKIPPED, "no remote KV tier is configured")
    for number, device in enumerate(needs.stores):
        source = node[f"store {number}"]
        if not source.is_present:
            yield check.finding(
                node,
                Status.FAIL,
                source.detail,
                device=device,
                cause="the store is not reached, refuses the credentials, or is full",
                remedy="start it, or correct its URL and credentials",
            )
            continue
        found = measurement(source.text, "store_gb_per_s", "load_gb_per_s")
        for act in ("store", "load"):
            yield check.measured(
                node,
                found[f"{act}_gb_per_s"],
                Bound(None, None, "GB/s"),
                f"{act} of chunks",
                device=device,
            )


CHECK = NodeCheck(
    "storage",
    "read rate of the weights' and the tiers' directories, measured",
    Layer.STORAGE,
    (),
    judge,
    readings,
    runs_beside_server=False,
)
STORES = NodeCheck(
    "kv-stores",
    "chunks stored in and loaded from remote KV tiers",
    Layer.STORAGE,
    (),
    judge_stores,
    stores,
    runs_beside_server=False,
)
