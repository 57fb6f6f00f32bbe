"""Plans in any shape: what a sequence gets depends on its own tokens only.

Blocks lie anywhere in the pool, which is full of what is not a number.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from penstock.backends.torch import backend as backend_module
from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.kv.pool import Pool
from penstock.backends.torch.load.uploads import InPlace, Way
from penstock.backends.torch.step.device import Cpu
from penstock.core import Allocation, Registration, StepPlan, StepResult
from penstock.core.plan import LAST_SAMPLED, NO_BLOCK
from penstock.core.transfer import OpenTiers, Transfer, TransferKind
from penstock.engine.startup import read_model
from tests.backends.torch.driving import BLOCK, Driver, Part, backend, config_of, dense
from tests.backends.torch.test_families import MARGIN, PROMPT
from tests.fakes.sampling import encode
from tests.limits import HANG

SHAPES = ["alternating", "llama", "gptoss", "gemma2", "deepseek3", "llama4", "qwen3moe"]
"""Families with windows, chunks, sinks, soft caps, latents and experts."""
make_pools = backend_module.make_pools


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Pool]:
    """The pools that a backend makes in this test, full of NaN."""
    made: list[Pool] = []

    def full_of_nan(*arguments: object) -> tuple[Pool, ...]:
        found = make_pools(*arguments)  # type: ignore[arg-type]
        for pool in found:
            pool.blocks.fill_(torch.nan)
        made.extend(found)
        return found

    monkeypatch.setattr(backend_module, "make_pools", full_of_nan)
    return made


def prompts(count: int, length: int) -> list[list[int]]:
    drawn = random.Random(count)
    return [[drawn.randrange(256) for _ in range(length - 7 * i)] for i in range(count)]


def alone(driver: Driver, prompt: list[int]) -> tuple[np.ndarray, list[int]]:
    driver.register(7)
    rows = driver.run(Part(7, prompt, score=True))
    (first,) = rows.tokens
    return dense(rows.prompt_logprobs[0]), driver.greedy(7, first, 6)


@pytest.mark.usefixtures("pools")
@pytest.mark.parametrize("family", SHAPES)
def test_sequences_of_mixed_steps_get_what_they_get_alone(family: str) -> None:
    texts = prompts(3, 60)
    with backend(family) as loaded:
        driver = Driver(loaded, seed=1)
        expected = [alone(driver, text) for text in texts]
        for slot in range(3):
            driver.register(slot)
        found: list[list[int]] = [[], [], []]
        rows: list[list[object]] = [[], [], []]
        chunks = {0: 5, 1: 16, 2: 60}
        while any(len(each) < 6 for each in found):
            parts = []
            for slot, text in enumerate(texts):
                at = driver.slots[slot].computed
                rest = text[at : at + chunks[slot]]
                if rest:
                    parts.append(Part(slot, rest, at + len(rest) == len(text), score=True))
                elif len(found[slot]) < 6:
                    parts.append(Part(slot, [LAST_SAMPLED]))
            # Steps have their decodes anywhere.
            random.Random(driver.step).shuffle(parts)
            result = driver.run(*parts)
            tokens = iter(result.tokens)
            for i, part in enumerate(parts):
                found[part.slot] += [next(tokens) for _ in range(result.counts[i])]
                rows[part.slot] += result.prompt_logprobs.get(i, [])
    for slot, (logprobs, greedy) in enumerate(expected):
        assert np.abs(dense(rows[slot]) - logprobs).max() <= MARGIN  # type: ignore[arg-type]
        assert found[slot] == greedy


def test_tokens_behind_a_window_need_no_block(pools: list[Pool]) -> None:
    with backend("alternating") as loaded:
        windows = [group.window for group in loaded.kv_spec().groups]
        group = next(g for g, window in enumerate(windows) if window)
        driver = Driver(loaded)
        expected = alone(driver, PROMPT)[1]
        driver.register(0)
        driver.run(Part(0, PROMPT, sample=False))
        table = driver.slots[0].tables[group]
        behind = (len(PROMPT) + 1 - (windows[group] or 0)) // BLOCK
        assert behind > 0
        for index in range(behind):
            pools[group].blocks[table[index]].fill_(torch.nan)
            table[index] = NO_BLOCK
        driver.back(0, 1)
        plan = driver.plan(Part(0, PROMPT[-1:]))
        kept, added = array("i"), array("i")
        offsets = array("i", [0])
        for own in driver.slots[0].tables:
            kept.append(0)
            added.extend(own)
            offsets.append(len(added))
        plan.kept, plan.added, plan.added_offsets = kept, added, offsets
        (first,) = loaded.submit(plan).result(HANG).tokens
        assert driver.greedy(0, first, 6) == expected


@pytest.mark.usefixtures("pools")
@pytest.mark.parametrize("family", ["alternating", "deepseek2", "qwen3"])
def test_a_prefix_is_read_from_the_blocks_of_another_sequence(family: str) -> None:
    with backend(family) as loaded:
        driver = Driver(loaded)
        expected = alone(driver, PROMPT)[1]
        driver.register(0)
        driver.share(0, 7, 3)
        (first,) = driver.run(Part(0, PROMPT[3 * BLOCK :])).tokens
        assert driver.greedy(0, first, 6) == expected


@pytest.mark.usefixtures("pools")
@pytest.mark.parametrize("family", ["llama", "gptoss", "deepseek3"])
def test_drafts_count_as_long_as_they_are_what_is_drawn(family: str) -> None:
    with backend(family) as loaded:
        driver = Driver(loaded)
        expected = alone(driver, PROMPT)[1]
        driver.register(0)
        driver.run(Part(0, PROMPT))
        wrong = (expected[2] + 1) % 256
        result = driver.run(Part(0, [expected[0], expected[1], wrong, 9], drafts=3))
        assert list(result.counts) == [2]
        assert result.tokens.tolist() == expected[1:3]
        # The two tokens behind the wrong draft are taken back; the last one is known to the device.
        driver.back(0, 2)
        result = driver.run(Part(0, [LAST_SAMPLED, *expected[3:5]], drafts=2))
        assert result.tokens.tolist() == expected[3:6]


MOVED = ["alternating", "deepseek2"]


@pytest.mark.parametrize("family", MOVED)
def test_blocks_come_back_from_the_ram_tier(family: str, pools: list[Pool]) -> None:
    with backend(family) as loaded:
        driver = Driver(loaded)
        expected = alone(driver, PROMPT)[1]
        driver.register(0)
        driver.run(Part(0, PROMPT[:48], sample=False))
        mover = loaded.open_tiers(OpenTiers("ab" * 32, 8, HANG))
        tables = driver.slots[0].tables
        stored = array("i", [block for table in tables for block in table])
        ram = array("i", [6, 2, 3])
        mover.submit(Transfer(1, TransferKind.STORE, blocks=stored, slots=ram))
        (moved,) = mover.take(HANG)
        size = sum(group.block_bytes for group in loaded.kv_spec().groups)
        assert (moved.id, moved.done, moved.bytes) == (1, True, 3 * size)
        for pool in pools:
            pool.blocks.fill_(torch.nan)
        driver.register(1)
        own = driver.slots[1]
        own.tables = [[free.pop() for _ in range(3)] for free in driver.free]
        own.computed = 48
        blocks = array("i", [block for table in own.tables for block in table])
        mover.submit(Transfer(2, TransferKind.LOAD, blocks=blocks, slots=ram))
        assert [each.done for each in mover.take(HANG)] == [True]
        (first,) = driver.run(Part(1, PROMPT[48:])).tokens
        assert driver.greedy(1, first, 6) == expected


def test_a_load_leaves_out_what_no_token_sees(pools: list[Pool]) -> None:
    with backend("alternating") as loaded:
        mover = loaded.open_tiers(OpenTiers("ab" * 32, 2, HANG))
        for pool in pools:
            pool.blocks.fill_(1.0)
        both = array("i", [5, 5])
        mover.submit(Transfer(1, TransferKind.STORE, blocks=both, slots=array("i", [0])))
        moved = [each.id for each in mover.take(HANG)]
        for pool in pools:
            pool.blocks.fill_(2.0)
        some = array("i", [5, NO_BLOCK])
        mover.submit(Transfer(2, TransferKind.LOAD, blocks=some, slots=array("i", [0])))
        mover.submit(Transfer(3, TransferKind.CLEAR))
        while len(moved) < 3 and (ended := mover.take(HANG)):
            moved += [each.id for each in ended]
        assert sorted(moved) == [1, 2, 3]
        assert [float(pool.blocks[5].mean()) for pool in pools] == [1.0, 2.0]


class Late:
    """A device whose work runs only when a result is waited for, in the order of the steps."""

    def __init__(self) -> None:
        self.torch = torch.device("cpu")
        self.name = "late"
        self.queue: list[LateStep] = []

    def start(self, work: object) -> LateStep:
        self.queue.append(LateStep(self, work))
        return self.queue[-1]

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def mark(self) -> Callable[[], bool]:
        return lambda: True

    @property
    def copies(self) -> None:
        return None

    def free_memory(self) -> int:
        return 1 << 30

    def synchronize(self) -> None: ...

    def way(self) -> Way:
        return InPlace()

    @property
    def capture(self) -> None:
        return None

    def close(self) -> None: ...


class LateStep:
    seconds = 0.0

    def __init__(self, device: Late, work: object) -> None:
        self._device = device
        self._work = work

    def result(self, timeout: float | None = None) -> None:
        while self in self._device.queue:
            self._device.queue.pop(0)._work()  # type: ignore[operator]


@contextmanager
def on(device: object, model: str) -> Iterator[TorchBackend]:
    config = config_of(model)
    loaded = TorchBackend(config, read_model(config), None, device)  # type: ignore[arg-type]
    loaded.allocate(Allocation((96,) * len(loaded.kv_spec().groups)))
    yield loaded
    loaded.close()


@pytest.mark.parametrize("family", ["llama", "gptoss"])
def test_a_plan_needs_nothing_of_the_step_before_it(family: str) -> None:
    """Plans are submitted before the device has begun with the ones before."""
    device = Late()
    with on(device, family) as loaded:
        driver = Driver(loaded)
        expected = alone(driver, PROMPT)[1]
        driver.register(0)
        plans = [driver.plan(Part(0, PROMPT))]
        plans += [driver.plan(Part(0, [LAST_SAMPLED])) for _ in range(5)]
        steps = [loaded.submit(plan) for plan in plans]
        assert len(device.queue) == 6
        assert [step.result(HANG).tokens[0] for step in steps] == expected


def test_rules_that_read_the_output_wait_for_it() -> None:
    """A banned run is not drawn, though its first token is in a step that was not awaited."""
    from penstock._native import encode_sampling

    device = Late()
    with on(device, "llama") as loaded:
        driver = Driver(loaded)
        expected = alone(driver, PROMPT)[1]
        driver.register(0, encode_sampling(banned=[expected[1:3]]))
        steps = [loaded.submit(driver.plan(Part(0, PROMPT)))]
        steps += [loaded.submit(driver.plan(Part(0, [LAST_SAMPLED]))) for _ in range(3)]
        found = [step.result(HANG).tokens[0] for step in reversed(steps)][::-1]
        assert found[:2] == expected[:2]
        assert found[2] != expected[2]


def plan_of(driver: Driver, **changes: object) -> StepPlan:
    driver.register(0)
    plan = driver.plan(Part(0, PROMPT[:20]))
    for name, value in changes.items():
        setattr(plan, name, value)
    return plan


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"starts": array("i", [120])}, r"positions 120\.\.140 are outside 0\.\.128"),
        ({"tokens": array("i", [256] * 20)}, r"token id 256 is not in 0\.\.256"),
        ({"tokens": array("i", [-1, -1] * 10)}, r"token id -1 is not in 0\.\.256"),
        ({"lengths": array("i", [21])}, "differ in length"),
        ({"added_offsets": array("i", [1, 2])}, "do not ascend from 0 to 2"),
        ({"drafts": array("i", [20])}, r"20 drafts, not in 0\.\.=19"),
        ({"slots": array("i", [8])}, r"slot 8 is not in 0\.\.8"),
        ({"slots": array("i", [3])}, "slot 3 was never registered"),
        ({"added": array("i", [1, 96])}, r"block 96 is not in 0\.\.96"),
        ({"added": array("i", [1, 1])}, "block to be written 1 appears twice"),
        ({"added": array("i", [1, -1])}, "no block for a part"),
        ({"kept": array("i", [1])}, "keeps 1 of 0 blocks"),
        ({"targets": array("i", [1])}, "targets and tokens differ"),
        (
            {"registrations": [Registration(0, encode(), grammar=1)]},
            "names grammar 1; the plan has 0",
        ),
        ({"registrations": [Registration(0, encode(), adapter=2)]}, "names adapter 2"),
    ],
)
def test_a_wrong_plan_is_refused_before_anything_is_computed(
    changes: dict[str, object], message: str
) -> None:
    with backend("llama") as loaded:
        driver = Driver(loaded)
        expected = alone(driver, PROMPT)[1]
        with pytest.raises(ValueError, match=message):
            loaded.submit(plan_of(driver, **changes))
        (first,) = (driver.register(0), driver.run(Part(0, PROMPT)))[1].tokens
        assert driver.greedy(0, first, 6) == expected


def test_slots_of_a_failed_plan_are_unusable_until_they_are_registered() -> None:
    with backend("llama") as loaded:
        driver = Driver(loaded)
        with pytest.raises(ValueError, match="keeps 1 of 0 blocks"):
            loaded.submit(plan_of(driver, kept=array("i", [1])))
        with pytest.raises(ValueError, match="slot 0 was in a plan that failed"):
            driver.run(Part(0, [1]))


def test_a_step_that_fails_ends_its_own_sequences_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in flight behind it goes on, and so does what comes later."""

    def broken(*_: object) -> None:
        raise RuntimeError("the device is on fire")

    device = Late()
    with on(device, "llama") as loaded:
        driver = Driver(loaded)
        expected = alone(driver, PROMPT)[1]
        driver.register(0)
        driver.register(1)
        doomed = loaded.submit(driver.plan(Part(0, PROMPT)))
        behind = loaded.submit(driver.plan(Part(1, PROMPT)))
        with monkeypatch.context() as patch:
            patch.setattr(backend_module, "pack", broken)
            with pytest.raises(RuntimeError, match="on fire"):
                doomed.result(HANG)
        (first,) = behind.result(HANG).tokens
        assert driver.greedy(1, first, 6) == expected
        with pytest.raises(ValueError, match="slot 0 was in a plan that failed"):
            driver.run(Part(0, [1]))


def test_a_first_token_must_have_been_sampled() -> None:
    with backend("llama") as loaded:
        driver = Driver(loaded)
        driver.register(0)
        with pytest.raises(ValueError, match="slot 0 has no last token"):
            driver.run(Part(0, [LAST_SAMPLED]))


def test_a_state_that_is_not_finite_gives_no_token(pools: list[Pool]) -> None:
    with backend("llama") as loaded:
        driver = Driver(loaded)
        driver.register(0)
        driver.run(Part(0, PROMPT))
        pools[0].blocks.fill_(torch.inf)
        result: StepResult = driver.run(Part(0, [LAST_SAMPLED]))
        assert result.tokens.tolist() == [-1]


def test_the_cpu_device_waits_no_longer_than_asked() -> None:
    device = Cpu(1)
    try:
        done = device.start(lambda: torch.manual_seed(0) and None)
        done.result(HANG)
        assert done.seconds > 0.0
    finally:
        device.close()
