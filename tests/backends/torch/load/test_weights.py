"""Stored forms of weights: what is read through recipes, and what stays as codes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.backends.torch.kernels import Matrix
from penstock.backends.torch.load.checkpoint import File, Stored
from penstock.backends.torch.load.dequant import BLOCKS, dequantize
from penstock.backends.torch.load.packed_experts import Cut, empty_codes, fill_codes, kept_form
from penstock.backends.torch.load.recipes import Source
from penstock.backends.torch.load.uploads import PlainReads
from penstock.core import PenstockError
from penstock.model.spec import Recipe
from tests.backends.torch.driving import Driver, Part, backend
from tests.backends.torch.quantised import with_fp8, with_mxfp4
from tests.backends.torch.test_families import MARGIN, PROMPT, read
from tests.fakes.sampling import encode


def source(*tensors: Stored) -> Source:
    found = {each.name: each for each in tensors}
    return Source(found, torch.float32, PlainReads())  # type: ignore[arg-type]


def stored(name: str, dtype: str, numbers: torch.Tensor, *shape: int, before: int = 0) -> Stored:
    """A tensor of a file of its own, from the byte `before` on."""
    data = numbers.contiguous().view(torch.uint8).flatten()
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(before) + data.numpy().tobytes())
        file.flush()
        opened = File(Path(file.name))
    return Stored(name, dtype, shape or tuple(numbers.shape), opened, before, len(data))


def read_codes(
    read_from: Source, recipe: Recipe, form: str, cut: Cut
) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scales = empty_codes(read_from, form, cut)  # type: ignore[arg-type]
    fill_codes(read_from, codes, scales, recipe, form, cut)  # type: ignore[arg-type]
    read_from.settle()
    return codes, scales


def random_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(5)


CUTS = [
    Cut(40, 96, range(40), range(96)),
    Cut(40, 96, range(8, 24), range(96)),
    Cut(40, 96, range(40), range(32, 64)),
    Cut(40, 96, range(40), range(64, 96)),
]


@pytest.mark.parametrize("cut", CUTS)
def test_mxfp4_of_two_tensors_stays_as_codes(cut: Cut) -> None:
    """gpt-oss: rows of gate and up in turn, two neighbours in a byte."""
    codes = stored("w", "U8", random_bytes(3, 80, 3, 16))
    scales = stored("s", "U8", torch.randint(110, 140, (3, 80, 3), dtype=torch.uint8))
    read_from = source(codes, scales)
    for rows in ((0, 40), (40, 80)):
        recipe = Recipe("w", rows=rows, interleaved=80, expert=1, scales="s")
        assert kept_form(read_from, recipe, cut) == "mxfp4"
        pair = read_codes(read_from, recipe, "mxfp4", cut)
        expected = read_from.matrix(recipe, cut.n, cut.k, cut.rows, cut.cols)
        assert torch.equal(Matrix(*pair, form="mxfp4").dense(), expected)


@pytest.mark.parametrize("cut", CUTS)
def test_mxfp4_of_a_gguf_file_stays_as_codes(cut: Cut) -> None:
    blocks = random_bytes(2, 40, 3, 17)
    blocks[..., 0] = 120 + blocks[..., 0] % 16
    read_from = source(stored("w", "MXFP4", blocks, 2, 40, 96))
    recipe = Recipe("w", expert=1)
    pair = read_codes(read_from, recipe, kept_form(read_from, recipe, cut), cut)
    expected = read_from.matrix(recipe, cut.n, cut.k, cut.rows, cut.cols)
    assert torch.equal(Matrix(*pair, form="mxfp4").dense(), expected)


@pytest.mark.parametrize(
    ("rows", "cols"), [(range(300), range(400)), (range(128, 300), range(256, 400))]
)
def test_fp8_blocks_stay_as_codes(rows: range, cols: range) -> None:
    numbers = torch.randn(300, 400).to(torch.float8_e4m3fn)
    read_from = source(stored("w", "F8_E4M3", numbers), stored("s", "F32", torch.rand(3, 4) + 0.5))
    recipe, cut = Recipe("w", scales="s"), Cut(300, 400, rows, cols)
    assert kept_form(read_from, recipe, cut) == "fp8_block"
    pair = read_codes(read_from, recipe, "fp8_block", cut)
    expected = read_from.matrix(recipe, 300, 400, rows, cols)
    assert torch.equal(Matrix(*pair, form="fp8_block").dense(), expected)
    scale = read_from.checkpoint["s"].rows()[2, 3]
    assert expected[-1, -1] == numbers[-1, -1].float() * scale


def test_a_cut_through_groups_becomes_numbers() -> None:
    read_from = source(
        stored("w", "F8_E4M3", torch.zeros(256, 256).to(torch.float8_e4m3fn)),
        stored("s", "F32", torch.ones(2, 2)),
        stored("m", "MXFP4", random_bytes(40, 3, 17), 40, 96),
    )
    fp8, mx = Recipe("w", scales="s"), Recipe("m")
    assert kept_form(read_from, fp8, Cut(256, 256, range(64), range(256))) == "plain"
    assert kept_form(read_from, fp8, Cut(256, 256, range(256), range(100))) == "plain"
    assert kept_form(read_from, mx, Cut(40, 96, range(40), range(16, 48))) == "plain"


def test_codes_without_scales_are_refused() -> None:
    read_from = source(
        stored("w", "F8_E4M3", torch.zeros(4, 4).to(torch.float8_e4m3fn)),
        stored("m", "U8", random_bytes(1, 4, 1, 16)),
    )
    for name, width in (("w", 4), ("m", 32)):
        with pytest.raises(PenstockError, match=f"tensor '{name}': .* without scales; not read"):
            read_from.matrix(Recipe(name, expert=0 if name == "m" else None), 4, width)


@pytest.mark.parametrize("dtype", BLOCKS)
def test_rows_of_blocks_are_cut_before_they_are_dequantised(dtype: str) -> None:
    numbers, size = BLOCKS[dtype]
    blocks = random_bytes(6, 2, size)
    blocks[..., [0, 1, 2, 3, size - 2, size - 1]] = 17
    read_from = source(stored("w", dtype, blocks, 6, 2 * numbers))
    expected = dequantize(dtype, blocks.flatten(1))
    found = read_from.matrix(Recipe("w"), 6, 2 * numbers, range(2, 5), range(32, 2 * numbers))
    assert torch.equal(found, expected[2:5, 32:])


@pytest.mark.parametrize("form", ["fp8", "mxfp4"])
def test_stored_codes_have_the_logits_of_the_native_decoder(form: str, tmp_path: Path) -> None:
    model = with_fp8("deepseek3", tmp_path) if form == "fp8" else with_mxfp4(tmp_path)
    native, greedy = read(model, PROMPT, len(PROMPT), device="cpu", quantization="none")
    logprobs, found = read(model, PROMPT, 25)
    assert np.abs(logprobs - native).max() <= MARGIN
    assert found == greedy


def test_a_file_of_four_bits_goes_on_as_the_native_decoder_does(model_file: Path) -> None:
    """Blocks of Q4_1 and Q8_0 of a real model."""
    found = []
    for device in ("torch", "cpu"):
        with backend(str(model_file), device=device, quantization="none") as loaded:
            driver = Driver(loaded)
            driver.register(0, encode(logprobs=5))
            result = driver.run(Part(0, [504, 3575, 282, 4649, 314]))
            (row,) = result.logprobs[0]
            found.append((row, driver.greedy(0, result.tokens[0], 6)))
    (ours, our_tokens), (theirs, their_tokens) = found
    assert our_tokens == their_tokens
    assert [token for token, _ in ours[2]] == [token for token, _ in theirs[2]]
    assert [v for _, v in ours[2]] == pytest.approx([v for _, v in theirs[2]], abs=1e-3)
