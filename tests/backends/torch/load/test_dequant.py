"""Quantised blocks: the numbers that the gguf package makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.backends.torch.load.dequant import BLOCKS, dequantize, mxfp4


@pytest.mark.parametrize("dtype", BLOCKS)
def test_blocks_have_the_numbers_of_the_gguf_package(repository: Path, dtype: str) -> None:
    vectors = repository / "tests/fixtures/dequant"
    stored = np.fromfile(vectors / f"{dtype}.stored", dtype=np.uint8)
    expected = np.fromfile(vectors / f"{dtype}.f32", dtype="<f4")
    assert (dequantize(dtype, torch.from_numpy(stored)).numpy() == expected).all()


def test_codes_with_scales_beside_them_are_pairs_of_neighbours() -> None:
    codes = torch.arange(16, dtype=torch.uint8).view(1, 1, 16) * 16 + 1
    numbers = mxfp4(codes, torch.tensor([[128]], dtype=torch.uint8))
    assert numbers.shape == (1, 32)
    assert numbers[0, :6].tolist() == [1.0, 0.0, 1.0, 1.0, 1.0, 2.0]
