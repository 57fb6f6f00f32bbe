"""Who shares which memory."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.core import PenstockError
from penstock.executor.nodes.rank_assignment import Node
from penstock.executor.ranks import RankLayout, SharedFiles, comm_resources, keyed, wire
from penstock.executor.ranks.topology import PIPE_CELLS


def ranks(tp: int, pp: int) -> RankLayout:
    return RankLayout(tp, pp, (pp - 1) * tp, ("{}",) * (tp * pp), 100, 4000, 1000, 1000)


def wirings(tp: int, pp: int) -> list[dict[str, Any]]:
    """On one host, where what is made is a number, counted in the order of making."""
    shape = ranks(tp, pp)
    wanted = comm_resources(shape)
    made = [{"kind": part.request[0], "path": at} for at, part in enumerate(wanted)]
    return wire(shape, wanted, made)


def paths(tp: int, pp: int, key: str) -> list[int | None]:
    return [wiring[key] and wiring[key]["path"] for wiring in wirings(tp, pp)]


def test_ranks_of_a_stage_share_a_group() -> None:
    first, other = paths(3, 2, "group")[::3]
    assert first != other
    assert paths(3, 2, "group") == [first] * 3 + [other] * 3
    assert paths(1, 3, "group") == [None] * 3
    assert [wiring["group"]["rank"] for wiring in wirings(3, 2)] == [0, 1, 2, 0, 1, 2]
    assert [part.request for part in comm_resources(ranks(3, 1))] == [("group", 3, 100)]


def test_ranks_of_a_stage_on_several_hosts_have_streams_with_a_key() -> None:
    hosts = [Node(0, "10.0.0.1")] * 3 + [Node(1, "10.0.0.2")] * 3
    shape = ranks(2, 3)
    wanted = comm_resources(shape, hosts)
    groups = [part for part in wanted if part.users[0][1] == "group"]
    assert [(part.maker, part.request) for part in groups] == [
        (0, ("group", 2, 100)),
        (2, ("port", "10.0.0.1")),
        (4, ("group", 2, 100)),
    ]
    made = [
        {"kind": "stream", "address": f"{part.request[1]}:{at}"}
        if part.request[0] == "port"
        else {"kind": "memory", "path": at, "ranks": 2, "capacity": 100}
        for at, part in enumerate(wanted)
    ]
    found = [json.loads(keyed(each, bytes(32))) for each in wire(shape, wanted, made)]
    first, other = found[2]["group"], found[3]["group"]
    assert (first["rank"], other["rank"]) == (0, 1)
    assert first["address"] == other["address"]
    assert (first["ranks"], first["capacity"], first["key"]) == (2, 100, "00" * 32)
    assert "key" not in found[0]["group"]
    # Rows between stages on two hosts.
    assert found[1]["after"]["kind"] == found[3]["before"]["kind"] == "stream"
    assert found[3]["before"]["capacity"] == 4000


def test_backends_that_sum_without_shared_memory_have_streams_on_one_host_too() -> None:
    shape = replace(ranks(3, 1), own_sums=True)
    assert [part.request for part in comm_resources(shape)] == [("port", "127.0.0.1")]


def test_each_rank_hands_to_its_peer_in_the_next_stage() -> None:
    for tp in (1, 2, 3):
        before, after = paths(tp, 3, "before"), paths(tp, 3, "after")
        assert before[:tp] == after[-tp:] == [None] * tp
        assert before[tp:] == after[:-tp]
        assert len(set(before)) == 2 * tp + 1
    assert {part.request for part in comm_resources(ranks(1, 3))} == {("ring", PIPE_CELLS, 4000)}


@pytest.mark.parametrize("carried", ["carried", "tensors"])
def test_rows_that_the_caller_carries_need_no_pipe(carried: str) -> None:
    shape = ranks(2, 3)
    wanted = comm_resources(shape, carried=carried)
    assert {part.request[0] for part in wanted} == {"group"}
    made = [{"kind": "memory"} for _ in wanted]
    ends = [(each["before"], each["after"]) for each in wire(shape, wanted, made, carried)]
    way = {"kind": carried}
    assert ends == [(None, way)] * 2 + [(way, way)] * 2 + [(way, None)] * 2


def test_files_have_no_name_and_descriptors_lead_to_them(tmp_path: Path) -> None:
    native = pytest.importorskip(
        "penstock._native", reason="the extension is not built: run `make install`"
    )
    files = SharedFiles(tmp_path)
    ring = files.ring(1, 3, 100)
    files.group(2, 50)
    files.seal()
    assert not list(tmp_path.iterdir())
    assert (ring["slots"], ring["capacity"]) == (4, 100)
    assert len(files.descriptors) == 2
    reader = native.RingReader(**ring, reader=0, readers=1)
    writer = native.RingWriter(**ring, readers=1, patience=1.0)
    open_before = len(os.listdir("/proc/self/fd"))
    files.close()
    assert len(os.listdir("/proc/self/fd")) == open_before - 2
    writer.send(b"still there")
    assert reader.receive(1.0) == b"still there"


def test_memory_that_does_not_fit_is_refused_with_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((real.f_bsize, 4096, 0, 0, 256, *list(real)[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    files = SharedFiles(tmp_path)
    files.ring(1, 2, 1 << 20)
    with pytest.raises(
        PenstockError, match=r"has 1 MiB free, the ranks need 3 MiB of shared memory"
    ):
        files.seal()
    files.close()
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"shared memory in .*nowhere: No such file"):
        SharedFiles(tmp_path / "nowhere")
