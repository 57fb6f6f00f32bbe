"""Two hosts without Ray, each with a rank of one stage: network namespaces with addresses of their
own, and torch's CPU device on both.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import conftest, sse, test_nodes
from tests.e2e.test_nodes import Nodes, others
from tests.e2e.test_parallel import tiny
from tests.namespaces import Hosts
from tests.real_ranks import TINY

serve, hosts, token, node = conftest.serve, test_nodes.hosts, test_nodes.token, test_nodes.node


@pytest.fixture(scope="module")
def model_file() -> Path:
    """In place of the default model, which is not needed here."""
    return TINY / "llama"


def test_two_ranks_on_two_hosts_give_the_tokens_of_transformers(
    node: Nodes, hosts: Hosts, repository: Path, tmp_path: Path
) -> None:
    model, reference = tiny(repository, tmp_path, "llama")
    flags = ["--device", "torch", "-tp", "2", "--dtype", "float32"]
    others(node, 2, *flags, model=model)
    with node(0, 2, *flags, model=model) as server, server.client() as client:
        before = [hosts.received(host) for host in range(2)]
        options = {"ignore_eos": True, "return_token_ids": True}
        for _ in range(2):
            choice = sse.complete(client, reference["tokens"], len(reference["greedy"]), **options)
            assert choice["token_ids"] == reference["greedy"]
        # The sums go to the first rank, and come back from it.
        moved = [hosts.received(host) - was for host, was in enumerate(before)]
        assert all(count > 1000 * len(reference["greedy"]) for count in moved)
        for rank, address in enumerate(hosts.addresses[:2]):
            lines = [line for line in server.log if f"rank {rank} loaded" in line]
            assert lines
            assert all(address in line and "torch-cpu" in line for line in lines)
