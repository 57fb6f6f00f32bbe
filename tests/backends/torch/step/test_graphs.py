"""Steps in graphs, with a recorder in place of CUDA: a replay runs the same work again, and
fails where anything differs that a CUDA graph would have frozen.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from penstock._native import encode_sampling
from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.layers import attention, feed_forward, model, products
from penstock.backends.torch.sampling.sampling import Draws
from penstock.backends.torch.sampling.slots import new_slot
from penstock.backends.torch.step import graphs, outputs, prompt_graphs
from penstock.backends.torch.step.graphs import BUCKETS
from penstock.core import Allocation, Registration, StepPlan
from penstock.core.plan import LAST_SAMPLED, NOT_FINITE
from penstock.engine.startup import read_model
from tests.backends.torch.driving import SLOTS, Driver, Part, backend, config_of
from tests.backends.torch.test_families import PROMPT
from tests.backends.torch.test_steps import Late
from tests.limits import HANG
from tests.real_ranks import VOCAB

KERNELS = {
    attention: (
        "attend_decode",
        "attend_latent",
        "attend_prefill",
        "rms_norm",
        "rotate",
        "rotate_and_store",
        "store_latent",
    ),
    feed_forward: ("experts", "linear_wide", "route"),
    graphs: ("sample",),
    model: ("find_rows", "layer_norm", "rms_norm"),
    products: ("activate", "linear"),
}
"""Functions that are kernels on a GPU: what their references do inside is not recorded."""


class Log(TorchDispatchMode):  # type: ignore[misc]
    """Operations with what a graph would freeze of their arguments: numbers, shapes, and the
    addresses of tensors that they did not make.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[object] = []
        self.outside: list[weakref.ref[torch.UntypedStorage]] = []
        """Memory of the tensors that they did not make."""
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
            if not made:
                self.outside.append(weakref.ref(value.untyped_storage()))
            return (where, tuple(value.shape), value.stride(), str(value.dtype))
        if isinstance(value, dict):
            return {key: self._frozen(each) for key, each in value.items()}
        if isinstance(value, (tuple, list)):
            return [self._frozen(each) for each in value]
        if is_dataclass(value):
            return [self._frozen(getattr(value, each.name)) for each in fields(value)]
        return repr(value)


SIZES, PROMPTS = (1, 2, 4, 16), (32, 64)
GRAPHS = 3 * len(SIZES) + len(PROMPTS)
"""Decodes with and without a draw, draws of prompts, and prompts."""


class Recorder:
    """Stands for CUDA graphs, which share a pool: the result of one is gone when another one is
    replayed, unless it lies elsewhere.
    """

    active: Log | None = None

    def __init__(self) -> None:
        self.captures = 0
        self.replays = 0
        self._pooled: list[Tensor] = []
        """Results in the pool."""

    def run(self, work: Callable[[], Tensor]) -> tuple[Tensor, Log]:
        log = Log()
        Recorder.active = log
        try:
            with log:
                return work(), log
        finally:
            Recorder.active = None

    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.captures += 1
        result, recorded = self.run(work)
        outside = [each() for each in recorded.outside]
        if all(each is None or each.data_ptr() != at(result) for each in outside):
            self._pooled.append(result)

        def replay() -> Tensor:
            self.replays += 1
            for other in self._pooled:
                other.fill_(GONE)
            again, log = self.run(work)
            for before, now in zip(recorded.entries, log.entries, strict=True):
                assert before == now
            return result.copy_(again)

        return replay


GONE = 99


def at(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Forgetful(Recorder):
    """Keeps what a CUDA graph keeps: its own memory, and of all other memory the addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[weakref.ref[torch.UntypedStorage]] = []

    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.captures += 1
        log = Log()
        Recorder.active = log
        with log:
            result = work()
        Recorder.active = None
        self.outside += log.outside
        return lambda: result


def opaque(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        log = Recorder.active
        return log.noted(name, function, args, kwargs) if log else function(*args, **kwargs)

    return call


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (graphs, prompt_graphs):
        monkeypatch.setattr(each, "BUCKETS", SIZES)
    monkeypatch.setattr(prompt_graphs, "TOKENS", PROMPTS)
    for module, names in KERNELS.items():
        for name in names:
            monkeypatch.setattr(module, name, opaque(name, getattr(module, name)))


@pytest.fixture
def recorder(kernels: None) -> Recorder:
    return Recorder()


class Recording(Late):
    """A device whose steps are recorded."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    @property
    def capture(self) -> Recorder:  # type: ignore[override]
        return self._recorder


@contextmanager
def recorded(family: str, recorder: Recorder, *, paused: bool = True) -> Iterator[TorchBackend]:
    """`paused`: all graphs are captured before the first step."""
    config = config_of(family)
    loaded = TorchBackend(config, read_model(config), None, Recording(recorder))
    loaded.allocate(Allocation((96,) * len(loaded.kv_spec().groups)))
    assert recorder.captures == 0
    if paused:
        pause(loaded)
    yield loaded
    loaded.close()


def pause(loaded: TorchBackend) -> None:
    """As many plans without sequences as there is use for."""
    captures = loaded._graphs.captures
    assert captures is not None
    for _ in range(len(captures)):
        loaded.submit(StepPlan(1)).result(HANG)
    assert captures.complete


def answers(driver: Driver, parameters: Sequence[dict[str, Any]] = ({},) * 3) -> list[list[int]]:
    """Three sequences that begin together, of different lengths; the last goes on alone."""
    found: list[list[int]] = []
    for slot in range(3):
        driver.register(slot, encode_sampling(**parameters[slot]))
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
    # A decode step replays one, with a row of padding or none, a prompt one and one that draws.
    assert (recorder.captures, recorder.replays) == (GRAPHS, 9 + 2 * 3)


@pytest.mark.parametrize("family", ["llama", "gemma2", "deepseek3", "qwen2moe", "gpt2"])
@pytest.mark.parametrize("parameters", [{}, {"presence_penalty": 1.5}], ids=["drawn", "outside"])
def test_what_a_graph_reads_stays(family: str, parameters: dict[str, Any], kernels: None) -> None:
    """The next tensor would get memory that is given back, and the graph would read that."""
    forgetful = Forgetful()
    with recorded(family, forgetful) as loaded:
        driver = Driver(loaded)
        driver.register(0, encode_sampling(**parameters))
        driver.run(Part(0, PROMPT))
        driver.run(Part(0, [LAST_SAMPLED]))
        gc.collect()
        assert forgetful.captures == GRAPHS
        # Weights, pools, tables, columns and offsets.
        assert len(forgetful.outside) > 10
        assert [each for each in forgetful.outside if each() is None] == []


DRAWN: list[dict[str, Any]] = [
    {"temperature": 0.9, "seed": 1},
    {"temperature": 1.1, "seed": (1 << 64) - 5, "top_k": 12, "top_p": 0.8},
    {"temperature": 1.3, "seed": 3, "min_p": 0.1, "choice": 2},
]
CHANGED: list[dict[str, Any]] = [{"presence_penalty": 1.5}, {"logprobs": 2}, {"bias": [(5, 4.5)]}]


@pytest.mark.parametrize("parameters", [DRAWN, [DRAWN[1], {}, DRAWN[2]]], ids=["drawn", "mixed"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_tokens_are_drawn_in_the_graph(
    family: str,
    parameters: list[dict[str, Any]],
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with backend(family) as eager:
        expected = [answers(Driver(eager, seed=3), each) for each in (parameters, DRAWN[::-1])]
    outside: list[int] = []
    draw = outputs.draw
    monkeypatch.setattr(
        outputs, "draw", lambda *words: outside.append(len(words[0])) or draw(*words)
    )
    with recorded(family, recorder) as loaded:
        # The second time with other parameters in the slots, by the same graphs.
        assert [answers(Driver(loaded, seed=3), each) for each in (parameters, DRAWN[::-1])] == (
            expected
        )
    assert (recorder.captures, recorder.replays) == (GRAPHS, 30)
    assert outside == []


@pytest.mark.parametrize("changed", CHANGED, ids=lambda each: next(iter(each)))
def test_what_reads_logits_is_drawn_outside(changed: dict[str, Any], recorder: Recorder) -> None:
    """As long as a sequence of the batch wants more than a token; the last goes on in graphs."""
    parameters = [DRAWN[0], changed, DRAWN[1]]
    with backend("llama") as eager:
        expected = answers(Driver(eager, seed=3), parameters)
    with recorded("llama", recorder) as loaded:
        assert answers(Driver(loaded, seed=3), parameters) == expected
        found = loaded._graphs.decodes._graphs  # type: ignore[union-attr]
        used = [key for key, each in found.items() if each.used]
        assert sorted(used) == [(1, True), (2, False), (4, False)]


def test_a_grammar_on_another_rank_keeps_the_draw_outside() -> None:
    """A rank without masks draws as the one that has them: their collectives are in pairs."""
    draws = Draws(rows=[0, 1])
    assert draws.plain
    draws.constrained = True
    assert not draws.plain
    slot = new_slot(Registration(0, encode_sampling(), grammar=1), 1, VOCAB)
    assert (slot.has_grammar, slot.constraint) == (True, None)


def test_tokens_of_a_step_stay_when_the_next_one_is_replayed(recorder: Recorder) -> None:
    with backend("llama") as eager:
        driver = Driver(eager, seed=3)
        driver.register(0, encode_sampling(**DRAWN[0]))
        (first,) = driver.run(Part(0, PROMPT)).tokens
        expected = driver.greedy(0, first, 5)
    with recorded("llama", recorder) as loaded:
        driver = Driver(loaded, seed=3)
        driver.register(0, encode_sampling(**DRAWN[0]))
        plans = [driver.plan(Part(0, PROMPT)), driver.plan(Part(0, [LAST_SAMPLED]))]
        # A chunk of another sequence beside it, then it alone again.
        driver.register(1)
        plans.append(driver.plan(Part(1, PROMPT[:20], sample=False), Part(0, [LAST_SAMPLED])))
        plans += [driver.plan(Part(0, [LAST_SAMPLED])) for _ in range(2)]
        steps = [loaded.submit(plan) for plan in plans]
        steps[-1].result(HANG)
        assert [step.result(HANG).tokens[0] for step in steps] == expected


def test_a_plain_decode_step_is_a_graph_and_a_copy_each_way(kernels: None) -> None:
    """Each operation more is time of the host, and of the device between two steps."""
    with recorded("llama", Forgetful()) as loaded:
        driver = Driver(loaded)
        for slot in range(2):
            driver.register(slot, encode_sampling(**DRAWN[slot]))
            driver.run(Part(slot, PROMPT[:20]))
        decodes = [Part(slot, [LAST_SAMPLED]) for slot in range(2)]
        driver.run(*decodes)
        with Log() as log:
            driver.run(*decodes)
    names = [str(name).split(".")[1] for name, *_ in log.entries]  # type: ignore[misc]
    # Views, and what `tolist` does on the host.
    free = ("view", "slice", "resolve_conj", "resolve_neg")
    assert [name for name in names if name not in free] == ["copy_", "clone"]


def test_a_state_that_is_not_finite_is_a_token_of_its_own() -> None:
    with backend("llama") as loaded:
        state = loaded._model, loaded._on_device  # type: ignore[attr-defined]
        x = torch.zeros(3, state[0].spec.hidden)
        x[1, 5] = torch.nan
        rows = [[0, 0, 0], [4, 2, 0], [9, 9, 9], [10, 10, 10]]
        columns = torch.tensor(rows, dtype=torch.int32)
        offsets = torch.arange(4, dtype=torch.int32)
        inputs = graphs.decode_inputs(columns, offsets)
        drawn = graphs.draw_all(*state, x, inputs.slots, inputs.lengths)
        assert drawn[1] == NOT_FINITE
        assert (drawn[[0, 2]] >= 0).all()
        assert state[1].last[[4, 2, 0]].tolist() == drawn.tolist()


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
