"""From how many rows on experts of codes are widened, and what that loses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import cases
from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.kernels import Matrix
from penstock.backends.torch.kernels.matrix import LARGEST_EXPONENT, pack_words
from penstock.backends.torch.kernels.widen import pieces, widen_reference
from penstock.backends.torch.load.weights import MixtureWeights
from penstock.backends.torch.load.widening import SCRATCH_BYTES, Widening
from penstock.backends.torch.startup import tuning, warm_up
from tests.backends.torch.driving import Driver, backend
from tests.backends.torch.quantised import with_mxfp4
from tests.backends.torch.test_devices import on_gpu, steps

NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
HALF_A_PLACE = 2.0**-8
"""The largest relative error of a number rounded to bfloat16."""


def wide(matrix: Matrix) -> torch.Tensor:
    count, outputs, inputs = matrix.shape
    scratch = torch.empty(count * outputs * inputs, dtype=torch.bfloat16)
    return widen_reference(matrix, range(count), scratch).double()


def test_mxfp4_loses_nothing() -> None:
    """All pairs of codes with all scales, whose numbers reach from 2^-128 to 12, in f64."""
    exponents = torch.arange(LARGEST_EXPONENT + 1)
    pairs = torch.arange(256).repeat(len(exponents), 1).to(torch.uint8)
    scales = exponents[:, None].expand(-1, 16).to(torch.uint8)
    matrix = Matrix(pack_words(pairs)[None], scales[None], form="mxfp4")
    table = torch.tensor([*NUMBERS, *(-number for number in NUMBERS)], dtype=torch.float64)
    codes = torch.stack([pairs & 15, pairs >> 4], -1).flatten(1).long()
    expected = table[codes] * (2.0 ** (exponents.double() - 127))[:, None]
    assert torch.equal(wide(matrix)[0], expected)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 3e5])
def test_fp8_loses_half_a_place_of_bfloat16(scale: float) -> None:
    """That is the most of each number, and of each term of a product; both against f64."""
    make = cases.Maker(torch.bfloat16)
    matrix = cases.matrix(make, "fp8_block", 2, 200, 300, bias=False)
    assert matrix.scales is not None
    matrix = replace(matrix, scales=matrix.scales * scale)
    rows, columns = torch.arange(200) // 128, torch.arange(300) // 128
    assert matrix.scales is not None
    blocks = matrix.scales.double()[:, rows[:, None], columns]
    exact = matrix.codes.view(torch.float8_e4m3fn).double() * blocks
    found = wide(matrix)
    assert ((found - exact).abs() <= HALF_A_PLACE * exact.abs()).all()
    assert not torch.equal(found, exact)
    x = make.numbers(9, 300).double()
    lost = x @ (found - exact).transpose(1, 2)
    assert (lost.abs() <= HALF_A_PLACE * (x.abs() @ exact.abs().transpose(1, 2))).all()


def test_pieces_are_all_experts_in_order() -> None:
    for count in (1, 5, 8):
        matrix = Matrix(torch.empty(count, 3, 4, dtype=torch.uint8), form="fp8_block")
        for room in range(1, 10):
            found = list(pieces(matrix, torch.empty(12 * room + 5)))
            assert [expert for part in found for expert in part] == list(range(count))
            assert max(map(len, found)) <= room


def matrix_of(count: int, outputs: int, inputs: int) -> Matrix:
    codes = torch.empty(count, outputs, inputs, dtype=torch.uint8, device="meta")
    return Matrix(codes, form="fp8_block")


def test_scratch_has_room_for_the_largest_expert_and_is_bounded() -> None:
    small, large = Widening(), Widening()
    small.reserve(matrix_of(4, 64, 32), matrix_of(4, 32, 32))
    large.reserve(matrix_of(128, 1536, 2048), matrix_of(2, 16384, 16384))
    found = [each.memory for each in (small, large)]
    assert [each.nbytes for each in found if each is not None] == [2 * 4 * 64 * 32, 2 * 16384**2]
    bounded = Widening()
    bounded.reserve(matrix_of(128, 1536, 2048))
    assert bounded.memory is not None
    assert bounded.memory.nbytes == SCRATCH_BYTES


def mixture(loaded: TorchBackend) -> MixtureWeights:
    return next(
        layer.feed_forward
        for layer in loaded._weights.layers
        if isinstance(layer.feed_forward, MixtureWeights)
    )


@pytest.mark.parametrize(("once", "expected"), [(0.0, 256), (150.0, 512), (300.0, None)])
def test_the_least_rows_that_are_faster_widened(
    once: float, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device on which a row costs 1 ms from codes, and half of that and `once` widened."""

    def measured(_weights: MixtureWeights, rows: int, scratch: torch.Tensor | None) -> float:
        return float(rows) if scratch is None else rows / 2 + once

    monkeypatch.setattr(tuning, "_milliseconds", measured)
    with backend(with_mxfp4(tmp_path), dtype="auto") as loaded:
        assert isinstance(loaded, TorchBackend)
        weights = mixture(loaded)
        assert weights.widening is not None
        tuning.tune_widening(loaded._model, 512)
        kept = [rows for rows in range(1, 600) if weights.widening.scratch(rows) is not None]
    # 32 rows fill no tile on average.
    assert kept == ([] if expected is None else list(range(expected, 600)))


def test_float32_is_never_widened(tmp_path: Path) -> None:
    with backend(with_mxfp4(tmp_path)) as loaded:
        assert isinstance(loaded, TorchBackend)
        assert mixture(loaded).widening is None


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of more rows than one are widened."""
    monkeypatch.setattr(Widening, "scratch", lambda self, rows: self.memory if rows > 1 else None)
    monkeypatch.setattr(warm_up, "tune_widening", lambda *_: None)


@pytest.mark.usefixtures("always")
def test_a_widened_step_waits_for_nothing(tmp_path: Path) -> None:
    """In graphs too."""
    with on_gpu(with_mxfp4(tmp_path), dtype="auto") as gpu:
        assert steps(Driver(gpu))
        # Waits that are not meant are errors of the stand-in.
        assert gpu.kernels["_widen"].launched


def test_a_start_measures_and_keeps_what_is_no_faster_as_it_is(tmp_path: Path) -> None:
    """Where nothing is gained, memory is given back."""
    with on_gpu(with_mxfp4(tmp_path), dtype="auto", max_num_batched_tokens=512) as gpu:
        own = mixture(gpu.loaded)
        assert own.inner.form == "mxfp4"
        assert own.widening is not None
        assert own.widening.memory is None
        assert steps(Driver(gpu))
