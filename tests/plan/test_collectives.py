"""Collectives of groups over several domains, beside traffic that is counted and measured sums."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ops.plan.calibration import read_sums, shipped
from penstock_ops.plan.collectives import Group, group
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.hardware import accelerator
from penstock_ops.plan.speed import step_model
from tests.plan.conftest import FP8, R1, Model

H100 = accelerator("h100-sxm-80gb")
FREE = {"hop": 0.0, "across": 0.0}


def traffic(domains: int, each: int) -> tuple[float, float]:
    """Most bytes that a device sends in its domain and out of it in an all-reduce of one byte, by
    the ring steps of reduce-scatter, all-reduce between domains, and all-gather.
    """
    inside, outside = Counter[int](), Counter[int]()
    for domain in range(domains):
        for at in range(each):
            rank = domain * each + at
            inside[rank] += sum(1 / each for _ in range(each - 1))  # reduce-scatter
            part = 1 / each
            # A ring over the devices of one number: scatter and gather of its part.
            outside[rank] += sum(part / domains for _ in range(2 * (domains - 1)))
            inside[rank] += sum(1 / each for _ in range(each - 1))  # all-gather
    return max(inside.values()), max(outside.values())


@pytest.mark.parametrize(("domains", "each"), [(1, 2), (1, 8), (2, 8), (4, 8), (3, 1), (8, 4)])
def test_an_all_reduce_moves_what_its_rings_send(domains: int, each: int) -> None:
    inside, outside = traffic(domains, each)
    size, link, network = 1e9, 400e9, 25e9
    found = Group(domains * each, domains, link, network, **FREE).all_reduce(size)
    assert found == pytest.approx(max(size * inside / link, size * outside / network))


def sent(domains: int, each: int) -> tuple[float, float]:
    """Most bytes that a device sends in its domain and out of it when every rank has a byte for all
    together: message by message, by way of the domain's device of the receiver's number.
    """
    inside, outside = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    places = [(domain, at) for domain in range(domains) for at in range(each)]
    for domain, at in places:
        for other, to in places:
            if to != at:
                inside[domain, at] += 1 / len(places)
            if other != domain:
                outside[domain, to] += 1 / len(places)
    return max(inside.values(), default=0), max(outside.values(), default=0)


@pytest.mark.parametrize(("domains", "each"), [(1, 2), (1, 8), (2, 8), (4, 8), (3, 1), (8, 4)])
def test_an_exchange_moves_what_its_messages_are(domains: int, each: int) -> None:
    inside, outside = sent(domains, each)
    size, link, network = 1e9, 400e9, 25e9
    found = Group(domains * each, domains, link, network, **FREE).exchange(size)
    assert found == pytest.approx(max(size * inside / link, size * outside / network))


@given(size=st.floats(0, 1e9), more=st.floats(1.0, 10.0), domains=st.integers(1, 32))
def test_an_exchange_grows_with_its_size_and_its_domains(
    size: float, more: float, domains: int
) -> None:
    def seconds(domains: int, size: float) -> float:
        return Group(8 * domains, domains, 225e9, 25e9, 1e-5, 2.8e-5).exchange(size)

    assert seconds(domains, size) <= seconds(domains, more * size)
    assert seconds(domains, size) <= seconds(domains + 1, size)


def test_the_exchange_of_experts_counts_tokens_copies_and_bytes(model: Model) -> None:
    """A layer's dispatch and combine of DeepSeek-R1 on one server: eight experts a token, in fp8
    there and in bf16 back, 7/8 of it to other ranks at half of NVLink's rate.
    """
    subject = model(R1, quantization_config=FP8)
    cut = Cut(8, 1, by_experts=True, by_requests=True)
    constants = shipped()[0]
    found = step_model(subject.spec, subject.weights, H100, cut, constants)
    tokens, hidden, chosen = 100, 7168, 8
    both = tokens * hidden * chosen * (1 + 2) * 7 / 8 / (450e9 * constants.link)
    assert 2 * (found.all_reduce(tokens) - constants.hop) == pytest.approx(both)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_group_of_one_domain_does_not_use_the_network(ranks: int) -> None:
    fast, slow = (
        group(replace(H100, network=rate), ranks, 0.5, 1e-5, 2.8e-5) for rate in (50e9, 1e9)
    )
    expected = 1e-5 + 2 * (ranks - 1) / ranks * 1e6 / 225e9
    assert fast.all_reduce(1e6) == slow.all_reduce(1e6) == pytest.approx(expected)


def test_linked_nodes_are_one_domain() -> None:
    assert group(accelerator("gb200-nvl72"), 16, 0.5, 1e-5, 2.8e-5).domains == 1
    assert group(H100, 16, 0.5, 1e-5, 2.8e-5).domains == 2


RATES = st.floats(1e9, 1e12)
RANKS = st.tuples(st.integers(1, 64), st.integers(1, 8)).map(lambda n: (n[0], min(n)))


@given(ranks=RANKS, link=RATES, network=RATES, slower=st.floats(0.01, 1.0), size=st.floats(0, 1e9))
def test_a_slower_link_is_never_faster(
    ranks: tuple[int, int], link: float, network: float, slower: float, size: float
) -> None:
    fast = Group(*ranks, link, network, 1e-5, 2.8e-5)
    for other in (replace(fast, link=link * slower), replace(fast, network=network * slower)):
        for name in ("all_reduce", "all_gather", "exchange"):
            assert getattr(other, name)(size) >= getattr(fast, name)(size)


def test_sums_between_two_hosts_are_near_those_of_source_002() -> None:
    """All within a factor of two; sums of decodes, up to 128 KiB, within a tenth."""
    sums = read_sums()
    found = sums.group(shipped()[0].across)
    ratios = {size: took / found.all_reduce(size) for size, took in sums.rows}
    assert len(ratios) == 12
    assert all(0.5 < ratio < 2 for ratio in ratios.values())
    assert all(0.9 < ratio < 1.1 for size, ratio in ratios.items() if size <= 1 << 17)
    assert 0.8 < median(ratios.values()) < 1.3


def test_the_bandwidth_of_large_sums_is_what_the_levels_allow() -> None:
    """Source 002 has 8,722 us for 2 GiB: no faster than the shares at full rates, and near them."""
    least = group(H100, 16, 1.0, 0.0, 0.0).all_reduce(1 << 31)
    assert least <= 8722.2e-6 <= 1.1 * least
