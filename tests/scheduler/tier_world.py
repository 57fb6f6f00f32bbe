"""A world with tiers whose contents are the fake executor's cells."""

from __future__ import annotations

from array import array
from random import Random
from typing import Any

from penstock.core import Request, StepPlan, TierKind
from penstock.core.transfer import Transfer, TransferKind
from penstock.kv.tiers import CircuitBreaker, Rates, Shape, Stats, TierCache, TierStats
from penstock.kv.tiers.breaker import BreakerState
from tests.fakes.executor import FakeExecutor
from tests.fakes.index import FakeIndex
from tests.scheduler.harness import World, make_request

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
        **options: object,
    ) -> None:
        """`per_token` and `bandwidth` are what the planner believes at the start."""
        self._named, self._ram_slots, self._auto = named, ram_slots, auto
        kinds = [TierKind.RAM] + [TierKind.DISK] * named
        rates = None if bandwidth is None else [bandwidth] * len(kinds)
        self.rates = Rates(kinds, per_token, rates)
        super().__init__(block_size=BLOCK, **options)  # type: ignore[arg-type]
        self.pool = self.kv.pools[0]

    @property
    def all_free(self) -> bool:
        return all(pool.available == pool.num_blocks for pool in self.kv.pools)

    def make_executor(self, **options: Any) -> FakeExecutor:
        tiers = {"named": self._named, "ram_slots": self._ram_slots, "auto": self._auto}
        executor = super().make_executor(**tiers, **options)
        self.mover = executor.mover
        return executor

    def make_tiers(self) -> TierCache:
        self.index = FakeIndex(self._ram_slots) if self._ram_slots else None
        full = 4 * BLOCK * (None in self.windows)
        seen = sum(4 * window for window in self.windows if window is not None)
        shape = Shape(BLOCK, full, CHUNK, self.limits.max_num_batched_tokens, seen)
        disks = [TierStats(f"disk:{at}", TierKind.DISK) for at in range(self._named)]
        self.stats = Stats([TierStats("ram", TierKind.RAM), *disks])
        pools, clock = self.kv.pools, lambda: self.now / 100
        self.breakers = [CircuitBreaker(disk.name, clock) for disk in disks]
        self.tiers = TierCache(
            pools,
            self.executor,
            self.index,
            shape,
            self.stats,
            self.rates,
            self.breakers,
            clock,
            self.events,
        )
        return self.tiers

    def step(self) -> StepPlan | None:
        """As `World`. Nothing of a tier may begin while its breaker is open, and only one transfer
        while it is half open.
        """
        before, asked = self._states(), len(self.mover.asked)
        plan = super().step()
        for tier, states in enumerate(zip(before, self._states(), strict=True), start=1):
            begun = [
                each
                for each in self.mover.asked[asked:]
                if each.tier == tier and each.kind is not TransferKind.CANCEL
            ]
            if states == (BreakerState.OPEN, BreakerState.OPEN):
                assert not begun
            elif states[0] is states[1] is BreakerState.HALF_OPEN and not self._auto:
                assert len(begun) <= 1
        return plan

    def _states(self) -> list[BreakerState]:
        return [breaker.state for breaker in self.breakers]

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
        expected = self.reference(request)
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
        for pool, cells in zip(self.kv.pools, self.executor.pools, strict=True):
            taken = [pool.take() for _ in range(pool.available)]
            for block in taken:
                cells[block * BLOCK : (block + 1) * BLOCK] = [None] * BLOCK
            pool.release(taken)

    def forget_names(self, tokens: list[int], first: int) -> None:
        """Remove the digests of these tokens from the pools, from the block `first` on."""
        assert self.kv.hasher is not None
        for digest in self.kv.hasher.digests(array("i", tokens), [], b"")[first:]:
            self.kv.forget(digest)

    def asked(self, kind: TransferKind) -> list[Transfer]:
        return [each for each in self.mover.asked if each.kind is kind]


def prompt(tokens: int, seed: int = 0) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(1, 97) for _ in range(tokens)]
