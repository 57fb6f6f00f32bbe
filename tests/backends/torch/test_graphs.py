"""Decode steps in graphs, with a recorder in place of CUDA: a replay runs the same work again, and
fails where anything differs that a CUDA graph would have frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from penstock.backends.torch import attention, feed_forward, model
from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.graphs import BUCKETS
from penstock.core.plan import LAST_SAMPLED
from penstock.engine.startup import read_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.backends.torch.driving import SLOTS, Driver, Part, backend, config_of
from tests.backends.torch.test_families import PROMPT
from tests.backends.torch.test_steps import Late

KERNELS = {
    attention: (
        "attend_decode",
        "attend_latent",
        "rms_norm",
        "rotate",
        "rotate_and_store",
        "store_latent",
    ),
    feed_forward: ("activate", "experts", "linear", "route"),
    model: ("rms_norm",),
}
"""Functions that are kernels on a GPU: what their references do inside is not recorded."""


class Log(TorchDispatchMode):  # type: ignore[misc]
    """Operations with what a graph would freeze of their arguments: numbers, shapes, and the
    addresses of tensors that they did not make.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[object] = []
        self._made: list[Tensor] = []
        self._inside = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.noted(str(func), func, args, kwargs or {})

    def noted(self, name: str, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._inside:
            return run(*args, **kwargs)
        self.entries.append((name, self._frozen(args), self._frozen(kwargs)))
        self._inside = True
        try:
            result = run(*args, **kwargs)
        finally:
            self._inside = False
        self._keep(result)
        return result

    def _keep(self, value: object) -> None:
        # Kept, so that no other tensor gets their memory.
        if isinstance(value, Tensor):
            self._made.append(value)
        elif isinstance(value, (tuple, list)):
            for each in value:
                self._keep(each)

    def _frozen(self, value: object) -> object:
        if isinstance(value, Tensor):
            storage = value.untyped_storage().data_ptr()
            made = any(storage == own.untyped_storage().data_ptr() for own in self._made)
            where = "made" if made else value.data_ptr()
            return (where, tuple(value.shape), value.stride(), str(value.dtype))
        if isinstance(value, dict):
            return {key: self._frozen(each) for key, each in value.items()}
        if isinstance(value, (tuple, list)):
            return [self._frozen(each) for each in value]
        if is_dataclass(value):
            return [self._frozen(getattr(value, each.name)) for each in fields(value)]
        return repr(value)


class Recorder:
    """Stands for CUDA graphs."""

    active: Log | None = None

    def __init__(self) -> None:
        self.captures = 0
        self.replays = 0

    def run(self, work: Callable[[], Tensor]) -> tuple[Tensor, list[object]]:
        log = Log()
        Recorder.active = log
        try:
            with log:
                return work(), log.entries
        finally:
            Recorder.active = None

    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.captures += 1
        result, recorded = self.run(work)

        def replay() -> Tensor:
            self.replays += 1
            again, entries = self.run(work)
            for before, now in zip(recorded, entries, strict=True):
                assert before == now
            return result.copy_(again)

        return replay


def opaque(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        log = Recorder.active
        return log.noted(name, function, args, kwargs) if log else function(*args, **kwargs)

    return call


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    for module, names in KERNELS.items():
        for name in names:
            monkeypatch.setattr(module, name, opaque(name, getattr(module, name)))
    return Recorder()


class Recording(Late):
    """A device whose decode steps are recorded."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    @property
    def capture(self) -> Recorder:  # type: ignore[override]
        return self._recorder


@contextmanager
def recorded(family: str, recorder: Recorder) -> Iterator[TorchBackend]:
    config = config_of(family)
    loaded = TorchBackend(config, read_model(config), None, Recording(recorder))
    loaded.allocate([96] * len(loaded.kv_spec().groups))
    yield loaded
    loaded.close()


def answers(driver: Driver) -> list[list[int]]:
    """Three sequences that begin together, of different lengths; the last goes on alone."""
    found: list[list[int]] = []
    for slot in range(3):
        driver.register(slot)
        found.append(driver.run(Part(slot, PROMPT[: 20 + 13 * slot])).tokens.tolist())
    for step in range(9):
        slots = [slot for slot in range(3) if step < 3 * (slot + 1)]
        result = driver.run(*(Part(slot, [LAST_SAMPLED]) for slot in reversed(slots)))
        for slot, token in zip(reversed(slots), result.tokens, strict=True):
            found[slot].append(token)
    return found


@pytest.mark.parametrize(
    "family",
    ["llama", "alternating", "gemma2", "gptoss", "deepseek3", "qwen2moe", "llama4", "gpt2"],
)
def test_steps_in_graphs_give_what_others_give(family: str, recorder: Recorder) -> None:
    with backend(family) as eager:
        expected = answers(Driver(eager, seed=3))
    with recorded(family, recorder) as loaded:
        assert answers(Driver(loaded, seed=3)) == expected
    # Batches of 4 (with a row of padding), 2 and 1; each step replays one.
    assert (recorder.captures, recorder.replays) == (3, 9)


def test_what_is_not_static_is_found() -> None:
    recorder = Recorder()
    x = torch.ones(4)
    state = {"factor": 1.0, "other": torch.ones(4)}
    by_number = recorder(lambda: x * state["factor"])
    by_tensor = recorder(lambda: x + state["other"])
    x.fill_(3.0)
    assert by_number().tolist() == [3.0] * 4
    assert by_tensor().tolist() == [4.0] * 4
    state.update(factor=2.0, other=torch.ones(4))
    for replay in (by_number, by_tensor):
        with pytest.raises(AssertionError):
            replay()


def test_all_sequences_of_a_server_fit_a_graph() -> None:
    assert BUCKETS[-1] >= SLOTS
    assert list(BUCKETS) == sorted(set(BUCKETS))
