"""FlashInfer as the attention of a backend, over a stand-in with its contract: the logits of
transformers, steps in graphs, and what is refused at the start.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.kernels import Scoring
from penstock.backends.torch.step import flash
from penstock.backends.torch.step.device import Cpu, Device
from penstock.backends.torch.step.graphs import BUCKETS
from penstock.core import Allocation, PenstockError
from penstock.core.plan import LAST_SAMPLED
from penstock.engine.startup import read_model
from tests.backends.torch.driving import Driver, Part, backend, config_of, dense
from tests.backends.torch.step import fake_flash
from tests.backends.torch.step.test_graphs import (
    SIZES,
    Recorder,
    Recording,
    answers,
    kernels,
    opaque,
    pause,
    recorder,
)
from tests.backends.torch.test_families import MARGIN, PROMPT, reference
from tests.fakes.sampling import encode

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
from benchmarks.gpu import beside, cases
from benchmarks.gpu.cases import Case, Maker
from benchmarks.gpu.items import FAILURES, Results
from benchmarks.gpu.timing import Timing

__all__ = ["kernels", "recorder"]

COMPUTED = ("alternating", "biased", "gemma2", "gemma3", "llama3", "mistral", "phi3", "qwen3moe")
"""Windows, one of them in every second layer; soft caps; a scale of its own; 1 to 4 query heads for
a KV head; biases, norms of queries; experts.
"""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tiny models are float32 and have small heads; the stand-in computes them too."""
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flash)
    monkeypatch.setattr(flash, "refusal", lambda *_: "")
    monkeypatch.setattr(flash, "WORKSPACE", 1 << 20)
    flash.module.cache_clear()
    fake_flash.MADE.clear()
    yield
    flash.module.cache_clear()


@contextmanager
def flashed(
    family: str, device: Device | None = None, **settings: object
) -> Iterator[TorchBackend]:
    config = config_of(family, device="cuda", attention_backend="flashinfer", **settings)
    loaded = TorchBackend(config, read_model(config), None, device or Cpu(1))
    try:
        loaded.allocate(Allocation((96,) * len(loaded.kv_spec().groups)))
        # What no token wrote is read by no token.
        for pool in loaded._model.pools:
            pool.blocks.fill_(torch.nan)
        yield loaded
    finally:
        loaded.close()


@pytest.mark.parametrize("family", COMPUTED)
def test_a_family_has_the_logits_of_transformers(family: str, fake: None) -> None:
    prompt, greedy, expected = reference(family)
    rows = []
    with flashed(family) as loaded:
        driver = Driver(loaded)
        driver.register(0)
        for start in range(0, len(prompt), 7):
            part = prompt[start : start + 7]
            rows += driver.run(Part(0, part, sample=False, score=True)).prompt_logprobs[0]
        driver.back(0, 1)
        (first,) = driver.run(Part(0, prompt[-1:])).tokens
        assert driver.greedy(0, first, 8) == greedy[:8]
    assert np.abs(dense(rows) - expected).max() <= MARGIN
    assert fake_flash.MADE


def mixed(driver: Driver) -> list[list[int]]:
    """Steps with chunks of prompts and rows of decodes, in another order than on the device."""
    for slot in range(3):
        driver.register(slot, encode())
    found = [driver.run(Part(0, PROMPT[:37])).tokens.tolist()]
    found.append(driver.run(Part(1, PROMPT[:20], sample=False), Part(0, [LAST_SAMPLED])).tokens)
    last = (Part(2, PROMPT[:1]), Part(1, PROMPT[20:41]), Part(0, [LAST_SAMPLED]))
    found.append(driver.run(*last).tokens)
    found.append(driver.run(*(Part(slot, [LAST_SAMPLED]) for slot in (1, 0, 2))).tokens)
    return [list(each) for each in found]


@pytest.mark.parametrize("family", ["alternating", "qwen3"])
def test_chunks_and_decodes_share_a_step(family: str, fake: None) -> None:
    with backend(family) as own:
        expected = mixed(Driver(own))
    with flashed(family) as loaded:
        assert mixed(Driver(loaded)) == expected


@pytest.mark.parametrize("family", ["alternating", "gemma2", "qwen3"])
def test_decodes_in_graphs_are_planned_before_each_replay(
    family: str, fake: None, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_flash, "KERNEL", [opaque("flashinfer", fake_flash.attention)])
    with backend(family) as eager:
        expected = answers(Driver(eager, seed=3))
    with flashed(family, Recording(recorder)) as loaded:
        # Blocks of padding rows hold something.
        for pool in loaded._model.pools:
            pool.blocks.zero_()
        pause(loaded)
        assert answers(Driver(loaded, seed=3)) == expected
        kinds = len(flash.kinds_of(loaded._weights))
    # Those that draw and those that do not share a plan.
    assert (recorder.captures, recorder.replays) == (2 * len(SIZES), 9)
    # Once before each capture, and once before each replay.
    assert sum(each.plans for each in fake_flash.MADE if each.graph) == kinds * (
        recorder.captures + recorder.replays
    )
    assert len([each for each in fake_flash.MADE if each.graph]) == kinds * len(SIZES)


def test_the_benchmark_plans_what_it_compares(fake: None, tmp_path: Path) -> None:
    """A dry row of it, on made-up numbers and our reference in place of our kernel."""
    timing = Timing(dry=True)
    make, scoring = Maker(timing.dtype, timing.device), Scoring(0.25)
    long, chunks = [17, 64, 1], [(0, 5), (60, 3)]
    builds: list[tuple[beside.Rows, Callable[[], Case]]] = [
        ([(n - 1, 1) for n in long], lambda: cases.decodes(make, long, 4, 2, 16, scoring)),
        (chunks, lambda: cases.prefills(make, chunks, 4, 2, 16, scoring)),
    ]
    results = Results(tmp_path / "found.json", math.inf)
    for rows, build in builds:
        beside._both(results, timing, "case", rows, build)
    assert len(results.rows("attention")) == len(builds)
    assert not results.rows(FAILURES)


def test_memory_counts_what_each_wrapper_of_a_graph_takes(fake: None) -> None:
    with flashed("alternating") as loaded:
        assert len(flash.kinds_of(loaded._weights)) == 2
        # 8 MiB of integers on the device, and 32768 lengths.
        assert flash.INTEGERS == 8 * 2**20 + 4 * 32768
        assert loaded._flash is not None
        columns = sum(
            each.nbytes
            for rows in BUCKETS
            for each in flash._staying(rows, torch.zeros(rows, 10)).values()
            if isinstance(each, torch.Tensor)
        )
        wanted = 2 * (flash.INTEGERS * len(BUCKETS) + columns)
        assert loaded._flash.graph_bytes(BUCKETS, 10) == wanted


def refused(family: str, **settings: object) -> str:
    settings = {"dtype": "auto", "kv_cache_dtype": "auto", **settings}
    config = config_of(family, device="cuda", attention_backend="flashinfer", **settings)
    with pytest.raises(PenstockError) as caught:
        TorchBackend(config, read_model(config), None, Cpu(1))
    return str(caught.value)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("gptoss", "attention sinks (layer 0)"),
        ("deepseek3", "attention (layer 0)"),
        ("llama4", "attention within chunks"),
        ("qwen3", "heads of"),
    ],
)
def test_models_that_it_does_not_compute_are_refused_by_name(family: str, reason: str) -> None:
    found = refused(family)
    assert found.startswith("--attention-backend flashinfer does not compute ")
    assert reason in found
    assert "Leave the flag out" in found


def test_float32_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "weights and KV cache have to be bfloat16" in refused("qwen3", dtype="float32")


@pytest.mark.parametrize("version", ["0.6.13", "0.2", "0.0.0+unknown"])
def test_an_old_flashinfer_is_refused_with_the_command(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flash.module.cache_clear()
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(__version__=version))
    monkeypatch.setattr(flash, "refusal", lambda *_: "")
    found = refused("qwen3")
    assert f"needs FlashInfer 0.7 or later, not {version}" in found
    assert "pip install 'flashinfer-python>=0.7'" in found


def test_a_missing_flashinfer_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    flash.module.cache_clear()
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.setattr(flash, "refusal", lambda *_: "")
    assert "pip install 'flashinfer-python>=0.7'" in refused("qwen3")


def test_it_is_for_gpus_alone() -> None:
    with pytest.raises(PenstockError, match="give --device cuda"):
        config_of("qwen3", attention_backend="flashinfer")
