"""Launches over two and three hosts without Ray: network namespaces with addresses of their own, in
each the same command with another --node-rank."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.e2e.losses import lose
from tests.e2e.server import Server, eventually
from tests.e2e.test_parallel import ranks_of, tiny
from tests.namespaces import Hosts
from tests.processes import is_alive, memory_files

PORT = 29501
LENGTH = ["--max-model-len", "8000"]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(3) as made:
        yield made


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("secret") / "token"
    file.write_text(secrets.token_hex(32))
    return file


Nodes = Callable[..., Server]


@pytest.fixture
def node(serve: Serve, hosts: Hosts, token: Path) -> Iterator[Nodes]:
    """`node(rank, nnodes, *flags)`: the command of one node on its host. No rank outlives them."""
    started: list[Server] = []
    before = memory_files()

    def start(rank: int, nnodes: int, *flags: str, secret: Path = token, **model: Path) -> Server:
        where = [
            "--nnodes",
            str(nnodes),
            "--node-rank",
            str(rank),
            "--master-addr",
            hosts.addresses[0],
        ]
        front = ["--host", hosts.addresses[0]]
        whole = [*where, *front, "--cluster-token-file", str(secret), *flags]
        started.append(serve(*whole, prefix=hosts.inside(rank), **model))
        return started[-1]

    yield start
    for each in reversed(started):
        if each.process.poll() is None:
            each.signal(signal.SIGTERM)
            assert each.wait() == 0, each.text()
        assert not ranks_of(each.pid)
    eventually(lambda: memory_files() <= before, "no shared memory of ranks")


def others(node: Nodes, nnodes: int, *flags: str, **model: Path) -> list[Server]:
    return [node(rank, nnodes, *flags, **model) for rank in range(1, nnodes)]


def says(server: Server, text: str, since: int = 0) -> None:
    """Wait until the log has `text` behind its first `since` lines."""
    eventually(lambda: any(text in line for line in server.log[since:]), f"{text!r} in the log")


def status(server: Server) -> int:
    """With which it ends by itself."""
    try:
        return server.wait()
    except subprocess.TimeoutExpired as error:
        raise AssertionError(server.text()) from error


# The same tokens
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nnodes", "grid"),
    [
        (2, (1, 2)),
        (2, (2, 3)),
        (3, (1, 3)),
        (3, (2, 3)),
        # Stages on several hosts: one, both, the second.
        (2, (4, 1)),
        (3, (2, 2)),
        (3, (3, 1)),
    ],
)
def test_ranks_on_hosts_give_the_tokens_of_transformers(
    node: Nodes, hosts: Hosts, repository: Path, tmp_path: Path, nnodes: int, grid: tuple[int, int]
) -> None:
    model, reference = tiny(repository, tmp_path, "llama")
    tp, pp = grid
    flags = ["-tp", str(tp), "-pp", str(pp), "--dtype", "float32"]
    others(node, nnodes, *flags, model=model)
    with node(0, nnodes, *flags, model=model) as server, server.client() as client:
        before = [hosts.received(host) for host in range(nnodes)]
        options = {"ignore_eos": True, "return_token_ids": True}
        for _ in range(2):
            choice = sse.complete(client, reference["tokens"], len(reference["greedy"]), **options)
            assert choice["token_ids"] == reference["greedy"]
        moved = [hosts.received(host) - was for host, was in enumerate(before)]
        hidden = json.loads((model / "config.json").read_text())["hidden_size"]
        # A residual stream or a sum for each token, to every host but the first.
        assert all(bytes_ > 4 * hidden * len(reference["greedy"]) for bytes_ in moved[1:])
        for rank in range(tp * pp):
            assert server.lines(f"rank {rank} loaded", "198.")


def test_the_default_model_on_two_hosts_gives_the_tokens_of_one_process(
    node: Nodes, serve: Serve
) -> None:
    exact = ["--quantization", "none"]
    with serve(*exact) as alone, alone.client() as client:
        expected = sse.complete(client, "Once upon a time", 32)
    others(node, 2, "-pp", "2", *exact)
    with node(0, 2, "-pp", "2", *exact) as server, server.client() as client:
        assert sse.complete(client, "Once upon a time", 32) == expected


def test_a_stage_on_two_hosts_has_the_bits_of_one_host(node: Nodes, serve: Serve) -> None:
    """In int8 too, where a last bit would show in the log-probabilities."""
    flags = ["-tp", "3", *LENGTH]
    options = {"logprobs": 5, "temperature": 1.0, "seed": 7}
    with serve(*flags) as alone, alone.client() as client:
        expected = sse.complete(client, "Once upon a time", 24, **options)
    others(node, 2, *flags)
    with node(0, 2, *flags) as server, server.client() as client:
        assert sse.complete(client, "Once upon a time", 24, **options) == expected
        assert sse.complete(client, "Once upon a time", 24, **options) == expected


# Losses
# ---------------------------------------------------------------------------------------------


def test_whatever_is_lost_the_service_resumes_on_the_nodes_that_are_there(
    node: Nodes, hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["-pp", "3", *LENGTH]
    agents = dict(enumerate(others(node, 3, *flags), start=1))
    with node(0, 3, *flags) as server, server.client() as client:
        expected = sse.complete(client, "Once upon a time", 8)

        def harmed(harm: Callable[[], object], what: str, said: str) -> None:
            stranded = [pid for host in agents for pid in ranks_of(agents[host].pid)]
            loss = lose(server, harm, what, capsys, streams=2)
            assert all(said in message for message in loss.messages), loss.messages
            assert sse.complete(client, "Once upon a time", 8) == expected
            eventually(
                lambda: not any(map(is_alive, stranded)),
                "the end of the ranks of the engine before",
            )

        for host in (1, 2):
            (rank,) = ranks_of(agents[host].pid)
            name = (
                f"rank {host} (process {rank} on {hosts.addresses[host]}) was killed by signal "
                "9 (SIGKILL)"
            )
            harmed(partial(os.kill, rank, signal.SIGKILL), f"rank {host} killed", name)

        def replace_agent() -> None:
            agents[2].process.kill()
            agents[2] = node(2, 3, *flags)

        harmed(replace_agent, "a node's process killed", f"node 2 ({hosts.addresses[2]}) was lost")

        def cut_for_a_while() -> None:
            said = len(server.log)
            hosts.cut(1)
            says(server, "waiting for node 1 of 3", said)
            hosts.mend(1)

        harmed(
            partial(in_background, cut_for_a_while),
            "a host cut off",
            f"node 1 ({hosts.addresses[1]}) was lost",
        )

        engine = server.engine()
        harmed(
            partial(os.kill, engine, signal.SIGKILL),
            "the engine killed",
            "was killed by signal 9 (SIGKILL)",
        )


def test_a_host_with_half_a_stage_that_dies_or_hangs_ends_the_step(
    node: Nodes, hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["-tp", "3", *LENGTH]
    (agent,) = others(node, 2, *flags)
    with node(0, 2, *flags) as server, server.client() as client:
        expected = sse.complete(client, "Once upon a time", 8)

        def harmed(harm: Callable[[], object], what: str, said: str) -> None:
            stranded = [*ranks_of(agent.pid), *ranks_of(server.engine())]
            loss = lose(server, harm, what, capsys, streams=2)
            assert all(said in message for message in loss.messages), loss.messages
            assert sse.complete(client, "Once upon a time", 8) == expected
            eventually(lambda: not any(map(is_alive, stranded)), "the end of the ranks before")

        def rank() -> int:
            (found,) = ranks_of(agent.pid)
            return found

        there = f"on node 1 ({hosts.addresses[1]})"
        harmed(
            lambda: os.kill(rank(), signal.SIGKILL),
            "a rank of the other host killed",
            f"on {hosts.addresses[1]}) was killed by signal 9 (SIGKILL)",
        )
        harmed(
            lambda: os.kill(rank(), signal.SIGSTOP),
            "a rank of the other host frozen",
            f"rank 2 {there} was lost: nothing was heard for",
        )
        harmed(
            lambda: os.kill(ranks_of(server.engine())[0], signal.SIGKILL),
            "the rank that adds killed",
            f"on {hosts.addresses[0]}) was killed by signal 9 (SIGKILL)",
        )

        def cut_for_a_while() -> None:
            said = len(server.log)
            hosts.cut(1)
            says(server, "waiting for node 1 of 2", said)
            hosts.mend(1)

        harmed(
            partial(in_background, cut_for_a_while),
            "the other host cut off",
            f"node 1 ({hosts.addresses[1]}) was lost",
        )


def in_background(work: Callable[[], None]) -> None:
    from threading import Thread

    Thread(target=work).start()


def test_ranks_end_with_the_agent_and_with_node_0(node: Nodes, serve: Serve) -> None:
    flags = ["-tp", "2", "-pp", "2"]
    (agent,) = others(node, 2, *flags)
    server = node(0, 2, *flags)
    server.wait_ready()
    pids = ranks_of(agent.pid)
    assert len(pids) == 2
    server.destroy()
    eventually(lambda: not any(map(is_alive, pids)), "the end of the ranks of a killed node 0")
    says(agent, "node 0 has gone")
    assert agent.process.poll() is None
    again = node(0, 2, *flags)
    again.wait_ready()
    pids = ranks_of(agent.pid)
    assert len(pids) == 2
    agent.process.kill()
    eventually(lambda: not any(map(is_alive, pids)), "the end of the ranks of a killed agent")


def test_ranks_of_a_host_that_is_cut_off_end_there_too(node: Nodes, hosts: Hosts) -> None:
    (agent,) = others(node, 2, "-pp", "2")
    with node(0, 2, "-pp", "2") as server:
        pids = ranks_of(agent.pid)
        assert len(pids) == 1
        said = len(server.log)
        hosts.cut(1)
        try:
            says(server, "waiting for node 1 of 2", said)
            says(agent, "nothing was heard for")
            eventually(
                lambda: not any(map(is_alive, pids)), "the end of the ranks that are cut off"
            )
        finally:
            hosts.mend(1)
        with server.client() as client:
            eventually(lambda: client.get("/health").status_code == 200, "a healthy server")


# Who joins
# ------------------------------------------------------------------------------------------


def test_a_node_may_come_late_and_one_with_another_token_may_not(
    node: Nodes, hosts: Hosts, tmp_path: Path
) -> None:
    server = node(0, 2, "-pp", "2")
    says(server, f"waiting for node 1 of 2 at {hosts.addresses[0]}:{PORT}")
    other = tmp_path / "token"
    other.write_text("another secret of some length")
    stranger = node(1, 2, "-pp", "2", secret=other)
    says(server, f"a caller from {hosts.addresses[1]} was turned away")
    says(stranger, "turned this node away: the other end does not hold the key")
    stranger.signal(signal.SIGTERM)
    assert stranger.wait() == 0
    node(1, 2, "-pp", "2")
    server.wait_ready()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--quantization", "none"], "model.quantization is none there, auto on node 0"),
        (["-pp", "3"], "parallel.pipeline is 3 there, 2 on node 0"),
        (["-tp", "2"], "parallel.tensor is 2 there, 1 on node 0"),
    ],
)
def test_other_flags_end_both_nodes_with_the_difference(
    node: Nodes, hosts: Hosts, flags: Sequence[str], said: str
) -> None:
    server = node(0, 2, "-pp", "2")
    agent = node(1, 2, "-pp", "2", *flags)
    for each in (server, agent):
        assert status(each) == 1, each.text()
        assert (
            f"node 1 ({hosts.addresses[1]}) cannot join node 0 ({hosts.addresses[0]}): {said}"
            in each.text()
        )


def test_another_model_ends_both_nodes(node: Nodes, repository: Path, tmp_path: Path) -> None:
    server = node(0, 2, "-pp", "2", model=tiny(repository, tmp_path, "llama")[0])
    agent = node(1, 2, "-pp", "2", model=tiny(repository, tmp_path, "qwen3")[0])
    for each in (server, agent):
        assert status(each) == 1, each.text()
        assert "the model is " in each.text()


def test_other_weights_are_noticed_when_they_are_loaded(
    node: Nodes, hosts: Hosts, repository: Path, tmp_path: Path
) -> None:
    model, _ = tiny(repository, tmp_path, "llama")
    (tmp_path / "other").mkdir()
    changed, _ = tiny(repository, tmp_path / "other", "llama")
    weights = bytearray((changed / "model.safetensors").read_bytes())
    weights[-4:] = b"\0\0\0\0"
    (changed / "model.safetensors").write_bytes(weights)
    agent = node(1, 2, "-pp", "2", model=changed)
    server = node(0, 2, "-pp", "2", model=model)
    assert server.wait() == 1
    assert f"rank 1 on {hosts.addresses[1]} opened another checkpoint than rank 0" in server.text()
    says(agent, "node 0 has gone")
    assert not ranks_of(agent.pid)


def test_without_a_token_nothing_starts(serve: Serve) -> None:
    for rank in ("0", "1"):
        flags = ["--nnodes", "2", "--node-rank", rank, "--master-addr", "127.0.0.1", "-pp", "2"]
        server = serve(*flags)
        assert server.wait() == 1
        assert "several nodes need a secret that all of them share" in server.text()
