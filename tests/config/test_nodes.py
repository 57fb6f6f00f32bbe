"""Flags of several hosts: what goes together, where node 0 is, the secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import EngineConfig, Raw, cluster_key, resolve, split_address
from penstock.core import InvalidValueError, PenstockError

SECRET = "0123456789abcdef"


def engine(**texts: str) -> EngineConfig:
    return resolve({key: Raw("", (text,)) for key, text in texts.items()}, "m", "m").engine


def test_a_node_knows_which_it_is_and_where_node_0_is() -> None:
    whole = {
        "nnodes": "3",
        "node_rank": "2",
        "master_addr": "10.0.0.1",
        "pipeline_parallel_size": "4",
    }
    found = engine(**whole, tensor_parallel_size="2", cluster_token_file="t")
    parallel = found.parallel
    assert (parallel.nnodes, parallel.node_rank, parallel.master) == (3, 2, "10.0.0.1:29501")
    assert (parallel.backend, parallel.token_file) == ("mp", "t")
    assert parallel.most_ranks_on_a_node == 4
    assert EngineConfig.from_json(found.to_json()) == found


def test_a_stage_may_be_on_several_nodes() -> None:
    whole = {"nnodes": "2", "node_rank": "1", "master_addr": "a:1"}
    parallel = engine(**whole, tensor_parallel_size="4").parallel
    assert parallel.most_ranks_on_a_node == 2
    assert [parallel.number_on_node(rank) for rank in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (
            {"nnodes": "3"},
            r"--nnodes is 3, expected at most 2, the ranks \(--tensor-parallel-size 1 x --pipeline",
        ),
        ({"node_rank": "2"}, r"--node-rank is 2, expected an integer in 0\.\.1"),
        ({"node_rank": ""}, "--node-rank is None, expected"),
        ({"master_addr": ""}, "--nnodes 2 needs --master-addr"),
        ({"master_addr": "host:http"}, "--master-addr is 'host:http', expected HOST"),
        ({"distributed_executor_backend": "ray"}, "expected mp for --nnodes 2"),
        ({"distributed_executor_backend": "inline"}, "expected mp for --nnodes 2"),
        ({"engine_process": "false"}, "--no-engine-process does not go with"),
        ({"nnodes": "1"}, "--node-rank is 1, expected 0, or --nnodes above it"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(texts: dict[str, str], said: str) -> None:
    whole = {
        "nnodes": "2",
        "node_rank": "1",
        "master_addr": "a:1",
        "pipeline_parallel_size": "2",
        **texts,
    }
    with pytest.raises(PenstockError, match=said):
        engine(**{key: text for key, text in whole.items() if text})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.1", ("10.0.0.1", 29501)),
        ("penstock-0.penstock:7000", ("penstock-0.penstock", 7000)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("fd00::1", ("fd00::1", 29501)),
        ("[fd00::1]", ("fd00::1", 29501)),
        ("[fd00::1]:65535", ("fd00::1", 65535)),
    ],
)
def test_the_address_of_node_0(text: str, found: tuple[str, int]) -> None:
    assert split_address(text) == found


@pytest.mark.parametrize("text", [":1", "a:0", "a:65536", "a:-1", "[::1", "[::1]x", "[]:5", "a:b"])
def test_addresses_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="--master-addr"):
        split_address(text)


@given(st.text())
def test_an_address_is_split_or_refused(text: str) -> None:
    try:
        host, port = split_address(text)
    except InvalidValueError:
        return
    assert host
    assert 1 <= port <= 65535


def test_the_secret_comes_from_the_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    environ = {"PENSTOCK_CLUSTER_TOKEN": SECRET}
    assert cluster_key(str(file), {}) == cluster_key(None, environ)
    assert len(cluster_key(None, environ)) == 32
    assert cluster_key(None, {"PENSTOCK_CLUSTER_TOKEN": SECRET + "x"}) != cluster_key(None, environ)
    other = {"PENSTOCK_CLUSTER_TOKEN": "something else altogether"}
    assert cluster_key(str(file), other) == cluster_key(None, environ), "the file comes first"


def test_several_nodes_without_a_secret_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PenstockError, match=r"--cluster-token-file, or into PENSTOCK_CLUSTER_TOKEN"
    ):
        cluster_key(None, {})
    with pytest.raises(
        PenstockError, match="PENSTOCK_CLUSTER_TOKEN: 5 characters, expected 16 or more"
    ):
        cluster_key(None, {"PENSTOCK_CLUSTER_TOKEN": "short"})
    with pytest.raises(PenstockError, match=r"--cluster-token-file .*nowhere: .*No such file"):
        cluster_key(str(tmp_path / "nowhere"), {"PENSTOCK_CLUSTER_TOKEN": SECRET})
