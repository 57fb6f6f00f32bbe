"""The index of the RAM tier from Python: against an LRU cache in plain Python, its calls and its
refusals.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._native import TierIndex
from penstock_lab.bench.traces import read


def block(document: int, at: int) -> bytes:
    return hashlib.blake2b(f"{document}/{at}".encode(), digest_size=32).digest()


def chain(document: int, length: int, group: bytes = bytes(4)) -> list[bytes]:
    return [group + block(document, at)[4:] for at in range(length)]


def serve(index: TierIndex, digests: Sequence[bytes]) -> int:
    """One request: what is not found is computed and kept. Returns the blocks found."""
    found = len(index.lookup(digests))
    rest = digests[found:]
    slots = index.admit(rest, digests[found - 1] if found else None)
    index.commit([digest for digest, slot in zip(rest, slots, strict=True) if slot >= 0])
    return found


class LeastRecent:
    """LRU whose requests use their blocks from the last to the first."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._kept: OrderedDict[bytes, None] = OrderedDict()

    def serve(self, digests: Sequence[bytes]) -> int:
        found = next(
            (at for at, digest in enumerate(digests) if digest not in self._kept), len(digests)
        )
        for digest in reversed(digests[: self._slots]):
            self._kept[digest] = None
            self._kept.move_to_end(digest)
        while len(self._kept) > self._slots:
            self._kept.popitem(last=False)
        return found


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12)), max_size=120))
def test_the_lru_rule_is_lru(slots: int, requests: list[tuple[int, int]]) -> None:
    index, reference = TierIndex(slots, rule="lru"), LeastRecent(slots)
    for document, length in requests:
        assert serve(index, chain(document, length)) == reference.serve(chain(document, length))
    index.check()


def test_conversations_of_the_trace_are_found_as_often_as_with_lru(shared: Path) -> None:
    path = shared / "data/traces/mooncake_conversation.jsonl"
    if not path.is_file():
        pytest.skip(f"no trace at {path}")
    names: dict[int, bytes] = {}
    requests = [
        [names.setdefault(number, block(0, number)) for number in arrival.hash_ids]
        for arrival in read(path).arrivals
    ]
    for tokens in (1_500_000, 5_000_000, 15_000_000):
        slots = tokens // 512
        index, reference = TierIndex(slots), LeastRecent(slots)
        ours = sum(serve(index, request) for request in requests)
        lru = sum(reference.serve(request) for request in requests)
        assert ours >= 0.97 * lru, f"{tokens} tokens: {ours} blocks, LRU {lru}"


def test_a_loop_over_twice_the_tier_is_not_all_misses() -> None:
    index = TierIndex(1000)
    hits = sum(serve(index, chain(turn % 100, 20)) for turn in range(2000))
    assert hits >= 0.4 * 2000 * 20
    assert index.stats()["gated"] is True


def test_a_store_is_found_when_it_is_done() -> None:
    index = TierIndex(8)
    digests = chain(1, 3)
    slots = index.admit(digests)
    assert sorted(slots) == [0, 1, 2]
    assert index.lookup(digests) == []
    assert index.admit(digests) == [-2, -2, -2]
    index.commit(digests[:2])
    index.abandon(digests[2:])
    assert index.lookup(digests) == slots[:2]
    assert index.peek(digests) == 2
    assert index.lookup(digests, 1) == slots[1:2]
    with pytest.raises(ValueError, match="not being stored"):
        index.commit(digests[:1])
    assert index.stats()["used"] == 2


def test_what_is_held_or_pinned_stays() -> None:
    index = TierIndex(4, pin_share=0.5)
    serve(index, chain(1, 2))
    serve(index, chain(2, 2))
    held = index.lookup(chain(1, 2))
    index.hold(held)
    assert index.pin(chain(2, 2)) == 2
    assert index.admit(chain(3, 2)) == [-1, -1]
    assert index.stats()["refused"] == 2
    with pytest.raises(ValueError, match="4 pinned blocks, 2 are allowed"):
        index.pin(chain(1, 2))
    # Removed while a load reads it: no hit any more, and not reused until the load has ended.
    assert index.remove(chain(1, 2)) == 2
    assert index.lookup(chain(1, 2)) == []
    assert index.admit(chain(1, 1)) == [-1]
    index.release(held)
    assert sorted(index.admit(chain(1, 2))) == sorted(held)
    index.unpin(chain(2, 2))
    assert index.stats()["pinned"] == 0
    with pytest.raises(ValueError, match="not held"):
        index.release(held)
    with pytest.raises(ValueError, match="holds nothing"):
        index.hold([3, 77])
    index.check()


def test_a_pin_waits_for_its_blocks() -> None:
    index = TierIndex(4)
    assert index.pin(chain(1, 2)) == 0
    for document in range(1, 9):
        serve(index, chain(document, 3))
    assert index.peek(chain(1, 3)) == 2


def test_blocks_may_continue_what_is_elsewhere() -> None:
    index = TierIndex(4)
    digests = chain(1, 4)
    slots = index.admit(digests[2:], digests[1])
    index.commit(digests[2:])
    assert index.lookup(digests) == []
    assert index.lookup(digests, 2) == slots


def test_a_group_with_its_quota_gives_up_its_own() -> None:
    index = TierIndex(10, quota=0.3, rule="lru")
    salted, unsalted = b"salt", bytes(4)
    of = {1: salted, 2: unsalted, 3: salted, 4: unsalted}
    for document, group in of.items():
        index.admit(chain(document, 3, group))
        index.commit(chain(document, 3, group))
    assert [index.peek(chain(document, 3, group)) for document, group in of.items()] == [0, 3, 3, 3]
    stats = index.stats()
    assert (stats["used"], stats["evictions"]) == (9, 3)
    assert index.clear(salted) == 3
    assert index.clear(b"none") == 0
    with pytest.raises(ValueError, match="a group has 4 bytes"):
        index.clear(b"salty")
    assert index.clear() == 6
    assert index.stats()["used"] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slots": 0}, "slots is 0"),
        ({"slots": 4, "quota": 0.0}, "quota is 0"),
        ({"slots": 4, "pin_share": 2.0}, "pin_share is 2"),
        ({"slots": 4, "rule": "fifo"}, "rule is fifo; expected auto or lru"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TierIndex(**options)  # type: ignore[arg-type]


def test_arguments_that_do_not_fit_are_refused() -> None:
    index = TierIndex(4)
    with pytest.raises(ValueError, match="parent has 5 bytes"):
        index.admit(chain(1, 2), b"short")
    with pytest.raises(ValueError, match="a digest has 32"):
        index.lookup([b"short"])
