"""Loads from tiers never change the output: hits, parts of hits, losses, stalls, cancellation and
random traffic, on tiers whose contents are the fake executor's cells.
"""

from __future__ import annotations

from array import array
from random import Random
from typing import Any

import pytest
from penstock.core import FinishReason, Request, TierKind
from penstock.core.transfer import RAM, Transfer, TransferKind
from penstock.kv_tiers import PrefixLoad, Rates, Shape, Stats, TierCache, TierStats
from penstock.kv_tiers.load import IN_FLIGHT

from tests.fakes.executor import FakeExecutor, hash_root
from tests.fakes.index import FakeIndex
from tests.scheduler.harness import IDENTITY, World, make_request, reference

BLOCK, CHUNK = 16, 4
"""Tokens of a block, blocks of a chunk."""


class TierWorld(World):
    """A world with tiers. `auto` answers every transfer at once; else `move` says when."""

    def __init__(
        self,
        *,
        named: int = 1,
        ram_slots: int = 0,
        auto: bool = True,
        per_token: float = 1.0,
        bandwidth: float | None = None,
        **options: int,
    ) -> None:
        """`per_token` and `bandwidth` are what the planner believes at the start."""
        self._named, self._ram_slots, self._auto = named, ram_slots, auto
        kinds = [TierKind.RAM] + [TierKind.DISK] * named
        rates = None if bandwidth is None else [bandwidth] * len(kinds)
        self.rates = Rates(kinds, per_token, rates)
        super().__init__(block_size=BLOCK, **options)  # type: ignore[arg-type]
        self.pool = self.kv.pools[0]

    def make_executor(self, **options: Any) -> FakeExecutor:
        tiers = {"named": self._named, "ram_slots": self._ram_slots, "auto": self._auto}
        executor = super().make_executor(**tiers, **options)
        self.mover = executor.mover
        return executor

    def make_tiers(self) -> TierCache:
        self.index = FakeIndex(self._ram_slots) if self._ram_slots else None
        shape = Shape(BLOCK, 4 * BLOCK, CHUNK, self.limits.max_num_batched_tokens)
        disks = [TierStats(f"disk:{at}", TierKind.DISK) for at in range(self._named)]
        self.stats = Stats([TierStats("ram", TierKind.RAM), *disks])
        pool, clock = self.kv.pools[0], lambda: self.now / 100
        self.tiers = TierCache(
            pool, self.executor, self.index, shape, self.stats, self.rates, clock
        )
        return self.tiers

    def finish(self, request: Request) -> int:
        """Tokens computed for a request that is alone in this world; it gets what it would get in
        another.
        """
        before = self.executor.computed
        self.add(request)
        self.run()
        self.check_output(request)
        return self.executor.computed - before

    def check_output(self, request: Request) -> None:
        """It is that of a request that is alone in a world without tiers."""
        ending = self.endings[request.id]
        expected = reference(request, self.limits.vocab_size, self.limits.max_model_len)
        assert (ending.tokens, ending.finish) == expected, f"request {request.id}"

    def keep(self, tokens: list[int], **options: object) -> None:
        """Compute a first request, whose blocks the tiers keep and the pool loses."""
        request = make_request(1, tokens, **options)  # type: ignore[arg-type]
        self.add(request)
        while self.scheduler.has_requests():
            self.mover.settle()
            self.step()
        self.settle()
        self.check_output(request)
        self.forget_pool()

    def begin_loads(self, request: Request) -> None:
        """Start the loads of a request, whose probes have been answered."""
        self.add(request)
        self.step()
        self.mover.settle()
        self.step()
        assert any(each.kind is TransferKind.LOAD for each in self.mover.waiting)

    def settle(self) -> None:
        """Stores end."""
        for _ in range(200):
            if not self.tiers.busy:
                return
            self.mover.settle()
            self.step()
        raise AssertionError("transfers do not end")

    def forget_pool(self) -> None:
        """Evict all blocks, as other requests would by taking them."""
        taken = [self.pool.take() for _ in range(self.pool.available)]
        for block in taken:
            for cell in range(block * BLOCK, (block + 1) * BLOCK):
                self.executor.cells[cell] = None
        self.pool.release(taken)

    def forget_names(self, tokens: list[int], first: int) -> None:
        """Remove the digests of these tokens from the pool, from the block `first` on."""
        assert self.kv.hasher is not None
        for digest in self.kv.hasher.digests(array("i", tokens), [], b"")[first:]:
            self.pool.forget(digest)

    def asked(self, kind: TransferKind) -> list[Transfer]:
        return [each for each in self.mover.asked if each.kind is kind]


def prompt(tokens: int, seed: int = 0) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(1, 97) for _ in range(tokens)]


@pytest.mark.parametrize(("named", "ram_slots"), [(1, 0), (0, 64), (2, 64), (1, 5)])
@pytest.mark.parametrize("length", [15, 16, 17, 63, 64, 65, 100, 128, 130])
def test_a_prompt_that_was_computed_once_is_loaded(named: int, ram_slots: int, length: int) -> None:
    world = TierWorld(named=named, ram_slots=ram_slots)
    world.keep(prompt(length), ignore_eos=True)
    computed = world.finish(make_request(2, prompt(length), ignore_eos=True))
    blocks = length // BLOCK
    kept = min(blocks * BLOCK, length - 1)
    row = world.endings[2].rows[0]
    if named or ram_slots >= 64:
        assert row.cached_tokens == kept
        assert computed == length - kept + 3, "the rest of the prompt and three tokens more"
    assert world.stats.decisions.load + world.stats.decisions.both == (blocks > 0)


def test_only_what_no_tier_has_is_computed() -> None:
    world = TierWorld()
    shared = prompt(130)
    world.keep(shared)
    computed = world.finish(make_request(2, shared[:100] + prompt(60, seed=1), max_tokens=1))
    assert computed == 160 - 64, "the first chunk was shared, the next in part only"


def test_a_shorter_end_of_a_chunk_is_found_behind_full_ones() -> None:
    world = TierWorld()
    shared = prompt(64 + 40)
    world.keep(shared, max_tokens=1)
    computed = world.finish(make_request(2, shared + prompt(100, seed=2), max_tokens=1))
    assert computed == 204 - 96, "a chunk and two blocks of the next were kept"


def test_a_shorter_end_is_found_behind_what_the_pool_has() -> None:
    world = TierWorld()
    shared = prompt(128 + 40)
    world.finish(make_request(1, shared, max_tokens=1))
    world.settle()
    world.forget_names(shared, 4)
    computed = world.finish(make_request(2, shared + prompt(60, seed=2), max_tokens=1))
    assert computed == 228 - 160, "a chunk of the pool, a chunk and two blocks of the tier"


def test_a_chunk_is_asked_for_where_the_pool_has_only_its_beginning() -> None:
    world = TierWorld()
    world.finish(make_request(1, prompt(128), max_tokens=1))
    world.settle()
    world.forget_names(prompt(128), 3)
    assert world.finish(make_request(2, prompt(129), max_tokens=1)) == 1


def test_salts_share_nothing() -> None:
    world = TierWorld(ram_slots=64)
    world.keep(prompt(100), cache_salt=b"one")
    assert world.finish(make_request(2, prompt(100), max_tokens=1, cache_salt=b"two")) == 100


def test_a_salt_is_forgotten_in_all_tiers_and_the_others_are_not() -> None:
    world = TierWorld(named=2, ram_slots=64)
    for salt in (b"one", b"two"):
        world.keep(prompt(100), cache_salt=salt)
    group = hash_root(IDENTITY, b"", b"one")[:4]
    assert world.tiers.write_behind.clear(group) == 6, "blocks in RAM"
    world.settle()
    assert all(
        tier and not any(name[0].startswith(group) for name in tier) for tier in world.mover.tiers
    )
    assert world.finish(make_request(2, prompt(100), max_tokens=1, cache_salt=b"one")) == 100
    assert world.finish(make_request(3, prompt(100), max_tokens=1, cache_salt=b"two")) == 4


def test_a_store_of_a_chunk_names_its_parent() -> None:
    world = TierWorld()
    world.keep(prompt(64 + 64 + 16), max_tokens=1)
    first, second, tail = world.asked(TransferKind.STORE)
    assert [each.parent for each in (first, second, tail)] == [b"", first.keys, second.keys]


@pytest.mark.parametrize("how", ["lost", "error"])
def test_what_cannot_be_loaded_is_computed(how: str) -> None:
    world = TierWorld(auto=False)
    world.keep(prompt(140))
    request = make_request(2, prompt(140), max_tokens=5)
    world.add(request)
    while world.scheduler.has_requests():
        world.step()
        for each in world.mover.waiting:
            if each.kind is not TransferKind.LOAD:
                world.mover.complete(each.id)
            elif how == "error":
                world.mover._waiting[each.id].failure = "the disk is gone"
                world.mover.complete(each.id)
            else:
                world.mover.tiers[0].clear()
                world.mover.complete(each.id)
    world.check_output(request)
    stats = world.stats.tiers[1]
    assert (stats.errors if how == "error" else stats.misses) >= 1
    world.settle()
    world.scheduler.check()


def test_a_tier_that_stalls_is_not_waited_for() -> None:
    world = TierWorld()
    world.keep(prompt(140))
    world.mover.stall(1)
    world.finish(make_request(2, prompt(140)))
    assert world.tiers.busy, "the probe is still open"
    world.mover.heal(1)
    world.settle()
    world.scheduler.check()


def test_a_tier_that_was_slow_is_loaded_from_again_once_it_is_fast() -> None:
    """While it seems slow everything is computed, and no request awaits the half-open probes."""
    world = TierWorld()
    world.finish(make_request(1, prompt(140)))
    world.settle()
    world.rates.loaded(1, 1, 1e9)
    tried = 0
    for number in range(2, 100):
        world.forget_pool()
        before = len(world.asked(TransferKind.LOAD))
        computed = world.finish(make_request(number, prompt(140), max_tokens=1))
        loads = len(world.asked(TransferKind.LOAD)) - before
        if computed == 140 - 128:
            break
        assert loads <= 1
        tried += loads
        world.settle()
        world.now += 100
    else:
        raise AssertionError("never again")
    assert tried > 1
    assert world.pool.available == world.pool.num_blocks


@pytest.mark.parametrize("chunks", [2, IN_FLIGHT, IN_FLIGHT + 3])
def test_a_load_that_stalls_is_left_to_itself(chunks: int) -> None:
    world = TierWorld(auto=False, num_blocks=128, max_model_len=1024)
    tokens = prompt(chunks * CHUNK * BLOCK + 12)
    world.keep(tokens)
    request = make_request(2, tokens)
    world.begin_loads(request)
    world.mover.stall(1)
    world.run()
    world.check_output(request)
    assert world.stats.tiers[1].errors
    held = {block for table in world.tiers.tables() for block in table}
    assert held, "the blocks of the stalled load have no other owner"
    world.mover.heal(1)
    world.settle()
    assert world.pool.available == world.pool.num_blocks


def test_no_request_waits_behind_the_stalled_load_of_another() -> None:
    world = TierWorld(auto=False, num_blocks=256, max_model_len=1024)
    prompts = [prompt(IN_FLIGHT * CHUNK * BLOCK + 12, seed=at) for at in (1, 2)]
    for tokens in prompts:
        world.keep(tokens)
    requests = [make_request(2 + at, tokens) for at, tokens in enumerate(prompts)]
    for request in requests:
        world.add(request)
    world.step()
    world.mover.settle()
    world.mover.stall(1)
    world.step()
    assert len(world.asked(TransferKind.LOAD)) == IN_FLIGHT, (
        "those of the first, and none of the second"
    )
    world.run()
    for request in requests:
        world.check_output(request)
    world.mover.heal(1)
    world.settle()
    assert world.pool.available == world.pool.num_blocks


@pytest.mark.parametrize("stalls", [False, True])
def test_a_tier_that_is_faster_than_it_seemed_is_awaited(stalls: bool) -> None:
    """Its first load says so, whether it had seemed slow or had stopped for a while."""
    # A chunk that is slow to load takes as long as its computation.
    bandwidth = None if stalls else 2.0
    world = TierWorld(
        auto=False, bandwidth=bandwidth, budget=16, num_blocks=128, max_model_len=1024
    )
    tokens = prompt(10 * CHUNK * BLOCK + 8)
    world.keep(tokens, max_tokens=1)
    before = world.executor.computed
    request = make_request(2, tokens, max_tokens=1)
    world.begin_loads(request)
    if stalls:
        world.mover.stall(1)
        while not world.stats.tiers[1].errors:
            world.step()
        world.mover.heal(1)
    while world.scheduler.has_requests():
        world.mover.settle()
        world.step()
    world.check_output(request)
    stalled = IN_FLIGHT if stalls else 0
    assert world.executor.computed - before <= (1 + stalled) * CHUNK * BLOCK + 8


def test_a_cancelled_request_leaves_its_loads_behind() -> None:
    world = TierWorld(auto=False)
    world.keep(prompt(140))
    world.begin_loads(make_request(2, prompt(140)))
    misses = world.stats.tiers[1].misses
    world.scheduler.cancel(2)
    world.collect()
    assert world.endings[2].finish is FinishReason.CANCELLED
    world.scheduler.check()
    assert not world.mover.waiting, "what had not begun is cancelled"
    assert world.pool.available < world.pool.num_blocks
    world.settle()
    assert world.pool.available == world.pool.num_blocks
    assert world.stats.tiers[1].misses == misses, "what was cancelled was not missing"


def test_slow_loads_come_from_the_end_while_the_beginning_is_computed() -> None:
    # A chunk takes about twice as long as its computation.
    world = TierWorld(auto=False, bandwidth=2.0, budget=16, max_num_seqs=4)
    world.keep(prompt(256 - 8), max_tokens=1)
    before = world.executor.computed
    world.begin_loads(make_request(2, prompt(256 - 8), max_tokens=1))
    assert world.executor.computed == before + 16, "and something is computed meanwhile"
    world.mover.settle()
    world.run()
    assert world.stats.decisions.both == 1
    assert 64 <= world.executor.computed - before < 256 - 8


def test_nothing_is_loaded_that_is_computed_sooner() -> None:
    world = TierWorld(bandwidth=1e-3)
    world.keep(prompt(140), max_tokens=1)
    assert world.finish(make_request(2, prompt(140), max_tokens=1)) == 140
    assert world.stats.decisions.compute == 1


@pytest.mark.parametrize("closed", [False, True])
def test_preemption_offloads_to_ram(closed: bool) -> None:
    """Also where RAM takes nothing else at present, because what it has is worth more."""
    world = TierWorld(named=0, ram_slots=64, num_blocks=10, max_num_seqs=2)
    assert world.index is not None
    world.index.closed = closed
    requests = [
        make_request(at, prompt(60, seed=at), max_tokens=60, ignore_eos=True) for at in (1, 2)
    ]
    for request in requests:
        world.add(request)
    world.run()
    stats = world.scheduler.stats()
    assert stats.preemptions >= 1
    for request in requests:
        world.check_output(request)
    assert world.stats.tiers[RAM].loaded_bytes > 0
    assert world.executor.computed < 240 + BLOCK * 2 * stats.preemptions, (
        "at most a block is computed again"
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_traffic(seed: int) -> None:
    """Hits, evictions, cancellations, late answers out of order, stalls, losses of tiers, small
    pools.
    """
    rng = Random(seed)
    world = TierWorld(
        named=rng.choice([0, 1, 2]),
        ram_slots=rng.choice([3, 20]) if rng.random() < 0.7 else 0,
        auto=False,
        num_blocks=rng.choice([18, 40]),
        budget=rng.choice([8, 32, 100]),
        in_flight=rng.choice([1, 2]),
        per_token=rng.choice([1e-12, 1e-9, 1.0]),
        bandwidth=rng.choice([None, None, 1e2, 1e9]),
    )
    families = [prompt(rng.randrange(20, 200), seed=at) for at in range(3)]
    if world.index is not None:
        world.index.closed = rng.random() < 0.3
    requests: dict[int, Request] = {}
    for request_id in range(1, 25):
        family = rng.choice(families)
        tokens = family[: rng.randrange(1, len(family) + 1)] + prompt(
            rng.randrange(0, 20), seed=request_id
        )
        salt = rng.choice([b"", b"", b"salt"])
        request = make_request(request_id, tokens, max_tokens=rng.randrange(1, 30), cache_salt=salt)
        requests[request_id] = request
        world.add(request)
        for _ in range(rng.randrange(0, 12)):
            _disturb(world, rng, request_id)
            world.step()
    for _ in range(4000):
        if not world.scheduler.has_requests() and not world.in_flight and not world.tiers.busy:
            break
        _disturb(world, rng, 0)
        world.step()
    else:
        raise AssertionError("it does not end")
    for request_id, request in requests.items():
        if world.endings[request_id].finish is not FinishReason.CANCELLED:
            world.check_output(request)
    assert world.pool.available == world.pool.num_blocks
    if world.index is not None:
        assert not +world.index.held


def _disturb(world: TierWorld, rng: Random, last: int) -> None:
    """Whatever may happen between two steps."""
    waiting = [each for each in world.mover.waiting if each.tier not in world.mover.stalled]
    if waiting and rng.random() < 0.7:
        each = rng.choice(waiting)
        if rng.random() < 0.1:
            world.mover._waiting[each.id].failure = "told to fail"
        world.mover.complete(each.id)
    if last and rng.random() < 0.05:
        world.scheduler.cancel(rng.randrange(1, last + 1))
    for tier in world.mover.tiers:
        if rng.random() < 0.02:
            tier.clear()
    for number in range(1, len(world.mover.tiers) + 1):
        if rng.random() < 0.02:
            world.mover.stall(number)
        elif rng.random() < 0.05:
            world.mover.heal(number)


def test_a_tier_that_does_not_answer_is_waited_for_once() -> None:
    """The second prompt waits as long as an answer is worth to it, which is less than the first
    waited.
    """
    world = TierWorld(auto=False, per_token=1e-3)
    world.mover.stall(1)
    waited = []
    for request_id in (1, 2):
        request = make_request(request_id, prompt(40, seed=request_id), max_tokens=1)
        before = world.now
        world.add(request)
        while world.scheduler.has_requests():
            world.step()
        waited.append((world.now - before) / 100)
        world.check_output(request)
    assert waited[0] > 0.1 > waited[1] * 2


def patience(answers: list[float], hits: int = 0, per_token: float = 1e-3) -> float:
    """Seconds that a prompt of 8 blocks awaits a tier whose last answers took so long."""
    world = TierWorld(auto=False, per_token=per_token)
    for seconds in answers:
        world.rates.probed(1, seconds)
    load = PrefixLoad()
    digests = [bytes([at]) * 32 for at in range(8)]
    assert world.tiers.lookup(load, digests, hits) is None
    return load.deadline - world.now / 100


def test_answers_of_a_slow_tier_are_waited_for_as_long_as_they_are_worth() -> None:
    assert patience([]) == pytest.approx(0.1), "it may be fast"
    assert patience([1.0]) == pytest.approx(0.05 * 8 * BLOCK * 1e-3)
    assert patience([1.0, 1.0], hits=6) == pytest.approx(0.05 * 2 * BLOCK * 1e-3), (
        "what the pool has is not computed"
    )
    quick = [1.0, 1.0] + [0.0] * 20
    assert patience(quick) == pytest.approx(0.05), (
        "half of that for one that is quick, in case it has stopped"
    )
    slower = quick + [0.008] * 20
    assert patience(slower, per_token=1.0) == pytest.approx(0.1), "and all of it for a long prompt"
    assert patience(slower, per_token=0.16 / (8 * BLOCK)) == pytest.approx(8 * 0.008, rel=0.01)
