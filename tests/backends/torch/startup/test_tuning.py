"""The ways to compute products of a few rows: right by each of them, and chosen by a clock."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.kernels.skinny import NARROW, WIDE
from penstock.backends.torch.layers import feed_forward
from penstock.backends.torch.layers.feed_forward import mixture_of_few, mixture_of_many
from penstock.backends.torch.layers.products import FASTER, bucket
from penstock.backends.torch.load.weights import MixtureWeights
from penstock.backends.torch.startup import tuning, warm_up
from penstock.backends.torch.startup.tuning import Contest, fastest, tune
from tests.backends.torch.driving import Driver, backend
from tests.backends.torch.fake_cuda import Event
from tests.backends.torch.test_devices import CAPTURE, on_gpu, steps

pytest.importorskip("triton", reason="Triton is not installed")

MIXTURES = [
    "qwen3moe",
    "gptoss",
    "qwen2moe",
    "deepseek2",
    "deepseek3",
    "llama4moe",
    "mixtral",
    "glm4moe",
]
FEW = ("_route_rows", "_inner_rows", "_output_rows")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    FASTER.clear()
    yield
    FASTER.clear()


@pytest.mark.parametrize("family", MIXTURES)
def test_few_rows_are_computed_as_many_are(family: str) -> None:
    with backend(family) as loaded, torch.inference_mode():
        assert isinstance(loaded, TorchBackend)
        forms = [layer.feed_forward for layer in loaded._model.weights.layers]
        mixtures = [form for form in forms if isinstance(form, MixtureWeights)]
        assert mixtures
        for weights in mixtures:
            x = torch.randn(5, weights.router.shape[1])
            given = (weights, x)
            torch.testing.assert_close(
                mixture_of_few(*given), mixture_of_many(*given), rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3moe", "gptoss", "deepseek3"])
def test_a_gpu_takes_what_is_faster(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of all weights, in steps that wait for nothing."""
    taken = iter(range(10**6))
    monkeypatch.setattr(tuning, "LEAST_BYTES", 0)
    monkeypatch.setattr(tuning, "BUDGET_S", 1e6)
    # Of the tiny weights some rows are no multiple of 16 long, and some routers are f32.
    monkeypatch.setattr(feed_forward, "takes", lambda x, *_: len(x) <= 16)
    # A way is faster the later it is measured.
    monkeypatch.setattr(Event, "elapsed_time", lambda *_: 0.9 ** next(taken))
    with on_gpu(family, dtype="auto") as gpu:
        assert set(FASTER.values()) <= {WIDE, True}
        counts = {name: kernel.launched for name, kernel in gpu.kernels.items()}
        assert len(steps(Driver(gpu))) == 10
        assert gpu.waits == [CAPTURE] * 4
        more = {name for name, each in gpu.kernels.items() if each.launched > counts[name]}
    assert "_product" in more
    assert set(FEW) <= more or family in ("llama", "gpt2")


def test_ways_that_take_the_same_time_leave_it_to_torch(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr(tuning, "LEAST_BYTES", 0)
        patch.setattr(tuning, "BUDGET_S", 1e6)
        with on_gpu("llama", dtype="auto"):
            assert FASTER
            assert set(FASTER.values()) == {None}
    assert any("products of 1, 2, 4.. rows, measured in" in each.message for each in caplog.records)


def test_matrices_of_all_layers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one layer would be in the device's cache."""
    seen: list[int] = []
    monkeypatch.setattr(warm_up, "tune", lambda model: seen.append(len(model.weights.layers)))
    with on_gpu("llama", dtype="auto") as gpu:
        # The rehearsal, which compiles, and the start.
        assert seen[-1] == len(gpu.loaded._weights.layers) > 1


def contest(name: str, rows: int, **seconds: float) -> Contest:
    ways = tuple((way, (name, rows, way), lambda s=s: s) for way, s in seconds.items())
    device = torch.device("cuda", 0)
    return Contest(name, rows, device, (name, rows), ways)  # type: ignore[arg-type]


def tuned(monkeypatch: pytest.MonkeyPatch, *contests: Contest) -> dict[Any, Any]:
    monkeypatch.setattr(tuning, "contests", lambda _: contests)
    monkeypatch.setattr(tuning, "seconds_of", lambda work, _: work())
    tune(SimpleNamespace())  # type: ignore[arg-type]
    return {key: way[2] for key, way in FASTER.items()}


def test_the_fastest_way_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        found = tuned(
            monkeypatch,
            contest("a", 1, torch=3.0, narrow=2.0, wide=1.0),
            contest("a", 2, torch=3.0, narrow=2.0, wide=2.5),
            # Not by so little that another start would find the other.
            contest("b", 1, torch=3.0, narrow=2.99, wide=3.5),
        )
    assert found == {("a", 1): "wide", ("a", 2): "narrow", ("b", 1): "torch"}
    (record,) = caplog.records
    assert record.message.endswith("a: wide, narrow; b: torch")


def test_a_way_that_fails_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def seconds_of(work: Any, _device: Any) -> float:
        if work() == 1.0:
            raise RuntimeError("out of resource: shared memory")
        return float(work())

    found = contest("a", 1, torch=3.0, narrow=1.0, wide=2.0)
    monkeypatch.setattr(tuning, "seconds_of", seconds_of)
    assert fastest(found)[0] == "wide"
    assert "a of 1 rows: narrow is left out: out of resource" in caplog.text
    reason = "CUDA error: an illegal memory access was encountered"
    monkeypatch.setattr(tuning, "seconds_of", lambda *_: raised(RuntimeError(reason)))
    with pytest.raises(RuntimeError, match="illegal"):
        fastest(found)


def raised(error: Exception) -> float:
    raise error


def test_what_there_is_no_time_for_is_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tuning, "BUDGET_S", -1.0)
    with caplog.at_level(logging.INFO):
        assert tuned(monkeypatch, contest("a", 1, torch=3.0, wide=1.0)) == {}
    assert "a: torch, not measured" in caplog.text


def test_rows_are_those_of_the_next_larger_measurement() -> None:
    assert [bucket(rows) for rows in (1, 2, 3, 5, 8, 9, 16)] == [1, 2, 4, 8, 8, 16, 16]
    assert NARROW.step == 512
