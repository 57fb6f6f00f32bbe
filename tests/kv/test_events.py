"""KV events say what the pool has, whatever happens to its blocks."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kv import BlockHasher, BlockTable, KvCache
from tests.fakes.executor import hash_chain, hash_root
from tests.fakes.followed import Followed

SIZE = 16
BLOCKS = 10
PROMPTS = [
    array("i", [*range(shared), *range(1000 + n, 1080 + n)])
    for n, shared in enumerate((0, 32, 32, 64))
]


class World:
    def __init__(self, windows: list[int | None]) -> None:
        self.followed = Followed()
        self.hasher = BlockHasher(SIZE, b"i" * 32, hash_chain, hash_root)
        self.kv = KvCache(
            SIZE,
            [BLOCKS] * len(windows),
            windows=windows,
            step_tokens=96,
            hasher=self.hasher,
            events=self.followed,
        )
        self.tables: dict[int, BlockTable] = {}
        self.digests = [self.hasher.digests(tokens, [], b"") for tokens in PROMPTS]

    def compute(self, prompt: int, blocks: int) -> None:
        """A sequence takes its hit, computes, and names what is full."""
        if prompt in self.tables:
            return
        table, digests = self.kv.table(), self.digests[prompt]
        blocks = min(blocks, len(digests))
        hits = self.kv.find_prefix(digests, blocks).hits
        if not self.kv.admit(table, digests, hits, blocks * SIZE, 0):
            return
        for at in range(hits, blocks):
            self.kv.publish(table, at, digests[at])
        self.kv.report_stored(PROMPTS[prompt], digests, hits, blocks)
        self.tables[prompt] = table

    def end(self, prompt: int) -> None:
        if prompt in self.tables:
            self.kv.release(self.tables.pop(prompt))

    def check(self, group: int) -> None:
        pool = self.kv.pools[group]
        for tokens, digests in zip(PROMPTS, self.digests, strict=True):
            for at, digest in enumerate(digests):
                known = self.followed.blocks.get(digest)
                assert (known is not None) == (pool.find(digest) >= 0)
                assert known is None or known == tokens[: (at + 1) * SIZE]


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["compute", "end", "forget", "clear"]), st.integers(0, 3), st.integers(1, 6)
    ),
    max_size=60,
)


@settings(deadline=None)
@given(ACTIONS)
def test_events_say_what_the_pool_has(actions: list[tuple[str, int, int]]) -> None:
    world = World([None])
    for action, prompt, count in actions:
        if action == "compute":
            world.compute(prompt, count)
        elif action == "end":
            world.end(prompt)
        elif action == "forget":
            # from the end: a block is never named without the one before it
            for digest in reversed(world.digests[prompt]):
                world.kv.forget(digest)
        else:
            assert world.kv.forget_all() >= 0
        world.check(0)


def test_the_group_without_a_window_is_the_one_that_counts() -> None:
    world = World([32, None])
    world.compute(0, 5)
    world.check(1)
    assert len(world.followed.blocks) == 5
    world.kv.publish_events()
    assert world.followed.batches == 1
