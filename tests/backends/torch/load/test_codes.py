"""Matrices of integer codes: the weights to which quantisation tools and plain arithmetic
dequantise them, bit for bit, and the logits of transformers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.backends.torch.load import recipes
from penstock.backends.torch.load.checkpoint import Checkpoint, Stored
from penstock.backends.torch.load.recipes import Source, of_expert
from penstock.backends.torch.load.uploads import PlainReads
from penstock.core import PenstockError
from penstock.model.dummy import dummy_weights
from penstock.model.load import ModelInfo, load_model
from penstock.model.spec import CodeLayout, Codes, Recipe
from tests.backends.torch.driving import Driver, backend
from tests.backends.torch.load.test_weights import source, stored
from tests.backends.torch.ranks import test_ranks
from tests.backends.torch.test_families import MARGIN, read
from tests.quantised_files import CHECKPOINTS, QUANTISED, reference

TOLERANCE = 1e-3
"""Largest difference of log-probabilities, as a share of the largest logit."""


def matrices(info: ModelInfo) -> Iterator[tuple[Recipe, int, int]]:
    """Recipes of quantised matrices, with their outputs and inputs."""
    a, hidden, width = info.spec.attention, info.spec.hidden, info.spec.widths[0]
    inner, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    sizes = {"q": (inner, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, inner)}
    sizes |= {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    for roles in info.weights.layers:
        for role, size in sizes.items():
            yield roles[role], *size


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_weights_are_those_of_the_tool_bit_for_bit(checkpoint: str) -> None:
    info, expected = load_model(QUANTISED / checkpoint), reference(checkpoint)
    read_from = Source(Checkpoint(QUANTISED / checkpoint), torch.float32, PlainReads())
    digests = {}
    for recipe, n, k in matrices(info):
        assert recipe.codes is not None
        weights = read_from.matrix(recipe, n, k).numpy()
        digests[recipe.module] = hashlib.sha256(weights.tobytes()).hexdigest()
        if recipe.module in expected.weights:
            assert np.array_equal(weights, expected.weights[recipe.module])
    assert digests == expected.digests


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_logits_are_those_of_the_dequantised_weights(checkpoint: str) -> None:
    expected = reference(checkpoint)
    logprobs, greedy = read(str(QUANTISED / checkpoint), expected.tokens, len(expected.tokens))
    error = np.abs(logprobs[expected.first :] - expected.logprobs).max()
    assert error <= TOLERANCE * np.abs(expected.logits).max()
    assert greedy[: len(expected.greedy)] == expected.greedy


@pytest.mark.parametrize("checkpoint", ["gptq-asym", "packed8-asym", "awq"])
def test_dummy_codes_have_the_groups_of_their_modules(checkpoint: str) -> None:
    with dummy_weights(load_model(QUANTISED / checkpoint), 7) as info:
        read_from = Source(Checkpoint(Path(info.paths[0])), torch.float32, PlainReads())
        for recipe, n, k in matrices(info):
            assert recipe.codes is not None
            assert read_from.matrix(recipe, n, k).std() > 0


@pytest.mark.parametrize("checkpoint", ["gptq-order", "awq", "packed4-asym", "gptq8-asym"])
def test_ranks_have_the_logits_of_one(checkpoint: str) -> None:
    model = str(QUANTISED / checkpoint)
    with backend(model) as loaded:
        expected, greedy = test_ranks.read(Driver(loaded))
    with test_ranks.cut(model, 2, 1) as ranks:
        logprobs, found = test_ranks.read(Driver(ranks))  # type: ignore[arg-type]
    assert np.abs(logprobs - expected).max() <= MARGIN
    assert found == greedy


@dataclass(frozen=True)
class Packed:
    """A matrix of random codes, and the tensors that hold it."""

    recipe: Recipe
    tensors: dict[str, Stored]
    weights: Tensor
    """f32 [outputs, inputs]."""

    def source(self, **changes: Stored) -> Source:
        return source(*(self.tensors | changes).values())


def packed(
    layout: CodeLayout,
    bits: int,
    n: int,
    k: int,
    size: int,
    *,
    ordered: bool = False,
    seed: int = 0,
) -> Packed:
    """A matrix with groups of `size` inputs, packed code by code."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << bits, (n, k))
    zeros = random.integers(0, 1 << bits, (n, k // size))
    scales = torch.from_numpy(random.uniform(-2, 2, (n, k // size)).astype(np.float16))
    group = np.arange(k) // size
    if ordered:
        random.shuffle(group)
    by_inputs = layout != "packed"
    words = _words(codes, bits, 1) if layout in ("packed", "gptq", "gptq_v2") else None
    if layout == "awq":
        words = _awq_words(codes.T).T
    assert words is not None
    zero_words = _words(zeros, bits, 0) if layout != "awq" else _awq_words(zeros.T).T
    if layout == "gptq":
        zero_words = (zero_words - {4: 0x11111111, 8: 0x01010101}[bits]) & 0xFFFFFFFF
    tensors = {
        "w": stored("w", "I32", _int32(words.T if by_inputs else words)),
        "s": stored("s", "F16", scales.T if by_inputs else scales),
        "z": stored("z", "I32", _int32(zero_words.T if by_inputs else zero_words)),
        "g": stored("g", "I32", torch.from_numpy(group.astype(np.int32))),
    }
    names = Codes(layout, bits, "s", 1, size, zeros="z", groups="g" if ordered else None)
    numbers = (codes - zeros[:, group]).astype(np.float32) * scales.numpy()[:, group]
    return Packed(Recipe("w", codes=names), tensors, torch.from_numpy(numbers))


def _words(codes: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """Words of neighbouring codes along an axis, the first in the low bits."""
    along = codes if axis == 1 else codes.T
    per = 32 // bits
    found = np.zeros((len(along), -(-along.shape[1] // per)), dtype=np.int64)
    for at in range(along.shape[1]):
        found[:, at // per] |= along[:, at] << bits * (at % per)
    return found if axis == 1 else found.T


def _awq_words(codes: np.ndarray) -> np.ndarray:
    """Words of eight neighbouring outputs [inputs, outputs], in AWQ's order."""
    found = np.zeros((len(codes), codes.shape[1] // 8), dtype=np.int64)
    for word in range(found.shape[1]):
        for place, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            found[:, word] |= codes[:, 8 * word + output] << 4 * place
    return found


def _int32(words: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(words).astype(np.uint32).view(np.int32))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Packed, range, range]:
    """A packed matrix, and the part of it to read."""
    layout: CodeLayout = draw(st.sampled_from(["packed", "gptq", "gptq_v2", "awq"]))
    bits = 4 if layout == "awq" else draw(st.sampled_from([4, 8]))
    size = draw(st.integers(1, 5)) * (1 if layout in ("packed", "awq") else 8)
    n = draw(st.integers(1, 5)) * (8 if layout == "awq" else 3)
    k = size * draw(st.integers(1, 4))
    seed, ordered = draw(st.integers(0, 99)), draw(st.booleans())
    rows = sorted(draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True)))
    cols = sorted(draw(st.lists(st.integers(0, k), min_size=2, max_size=2, unique=True)))
    made = packed(layout, bits, n, k, size, ordered=ordered, seed=seed)
    return made, range(*rows), range(*cols)


@settings(max_examples=80, deadline=None)
@given(cases(), st.integers(1, 64))
def test_any_part_is_what_plain_arithmetic_gives(
    case: tuple[Packed, range, range], at_once: int
) -> None:
    made, rows, cols = case
    n, k = made.weights.shape
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "CODED_BYTES", at_once)
        found = made.source().matrix(made.recipe, n, k, rows, cols)
    assert torch.equal(found, made.weights[rows.start : rows.stop, cols.start : cols.stop])


def test_bfloat16_weights_are_rounded_once() -> None:
    made = packed("gptq", 8, 16, 64, 32)
    narrow = replace(made.source(), dtype=torch.bfloat16)
    assert torch.equal(narrow.matrix(made.recipe, 16, 64), made.weights.bfloat16())


@pytest.mark.parametrize("layout", ["packed", "gptq", "awq"])
def test_recipes_cut_and_reorder_weights_not_words(layout: CodeLayout) -> None:
    made = packed(layout, 4, 48, 64, 32)
    cut = replace(made.recipe, rows=(16, 48), cols=(5, 37))
    assert torch.equal(made.source().matrix(cut, 32, 32), made.weights[16:, 5:37])
    turned = replace(made.recipe, interleaved=16, unrotated=4)
    plain = source(stored("p", "F32", made.weights))
    expected = plain.matrix(Recipe("p", interleaved=16, unrotated=4), 48, 64, range(8, 40))
    assert torch.equal(made.source().matrix(turned, 48, 64, range(8, 40)), expected)


@pytest.mark.parametrize("layout", ["packed", "gptq", "awq"])
def test_outputs_need_not_fill_the_last_word(layout: CodeLayout) -> None:
    made = packed(layout, 4, 16, 32, 8)
    shorter = {}
    for name in ("s",) if layout == "awq" else ("s", "w"):
        whole = made.tensors[name].rows()
        part = whole[:12] if layout == "packed" else whole[:, :12]
        shorter[name] = stored(name, made.tensors[name].dtype, part)
    assert torch.equal(made.source(**shorter).matrix(made.recipe, 12, 32), made.weights[:12])


def test_scales_may_have_any_float_type_and_zero_points_may_be_left_out() -> None:
    made = packed("packed", 8, 6, 8, 4)
    codes = made.recipe.codes
    assert codes is not None
    scales = torch.linspace(0.1, 3, 12).view(6, 2)
    differences = made.weights / made.tensors["s"].rows().float().repeat_interleave(4, 1)
    words = made.tensors["z"].rows()
    points = words.view(torch.uint8).view(2, 2, 4).movedim(-1, 1).reshape(8, 2)[:6]
    numbers = differences.round() + points.repeat_interleave(4, 1)
    recipe = Recipe("w", codes=replace(codes, zeros=None))
    for name, kind in (("F32", torch.float32), ("BF16", torch.bfloat16), ("F16", torch.float16)):
        found = made.source(s=stored("s", name, scales.to(kind))).matrix(recipe, 6, 8)
        wide = scales.to(kind).float().repeat_interleave(4, 1)
        assert torch.equal(found, (numbers - 128) * wide)


def test_experts_have_tensors_of_their_own() -> None:
    made = packed("gptq", 4, 8, 16, 8, ordered=True)
    codes = Codes("gptq", 4, "{e}.s", 1, 8, zeros="{e}.z", groups="{e}.g", shape="{e}.n")
    found = of_expert(Recipe("{e}.w", codes=codes), 3)
    names = Codes("gptq", 4, "3.s", 1, 8, zeros="3.z", groups="3.g", shape="3.n")
    assert found == Recipe("3.w", codes=names)
    renamed = {f"3.{name}": replace(each, name=f"3.{name}") for name, each in made.tensors.items()}
    read_from = source(*renamed.values(), stored("3.n", "I64", torch.tensor([8, 16])))
    assert torch.equal(read_from.matrix(found, 8, 16), made.weights)


@pytest.mark.parametrize(
    ("layout", "tensor", "problem"),
    [
        ("packed", "w", r"'w' has the shape \[8, 3\], not \[8, 2\]"),
        ("gptq", "w", r"'w' has the shape \[2, 9\], not \[2, 8\]"),
        ("awq", "w", r"'w' has the shape \[16, 2\], not \[16, 1\]"),
        ("packed", "s", r"'s' has the shape \[8, 3\], not \[8, 2\]"),
        ("gptq", "s", r"'s' has the shape \[2, 9\], not \[2, 8\]"),
        ("packed", "z", r"'z' has the shape \[1, 3\], not \[1, 2\]"),
        ("awq", "z", r"'z' has the shape \[2, 2\], not \[2, 1\]"),
        ("gptq", "g", r"'g' has the shape \[17\], not \[16\]"),
    ],
)
def test_a_tensor_of_another_shape_is_named(layout: CodeLayout, tensor: str, problem: str) -> None:
    made = packed(layout, 4, 8, 16, 8, ordered=True)
    right = made.tensors[tensor].rows()
    wrong = torch.cat([right, right[..., :1]], -1)
    changed = stored(tensor, made.tensors[tensor].dtype, wrong)
    with pytest.raises(PenstockError, match=f"tensor {problem}"):
        made.source(**{tensor: changed}).matrix(made.recipe, 8, 16)


def test_damaged_tensors_are_named() -> None:
    made = packed("gptq", 4, 8, 16, 8, ordered=True)
    codes = made.recipe.codes
    assert codes is not None
    scales, groups = (made.tensors[name].rows() for name in ("s", "g"))
    damage = {
        "'s' has values that are not finite": {
            "s": stored("s", "F16", scales.index_fill(1, torch.tensor([3]), torch.inf))
        },
        "'g': input 5 belongs to group 2, and there are 2": {
            "g": stored("g", "I32", groups.index_fill(0, torch.tensor([5]), 2))
        },
        "'g': input 0 belongs to group -1": {
            "g": stored("g", "I32", groups.index_fill(0, torch.tensor([0]), -1))
        },
        "'w' has the type F32, not I32": {"w": stored("w", "F32", torch.zeros(2, 8))},
        "'s' has the type I32, not F16 or BF16 or F32": {
            "s": stored("s", "I32", torch.zeros(2, 8, dtype=torch.int32))
        },
    }
    for problem, changes in damage.items():
        with pytest.raises(PenstockError, match=problem):
            made.source(**changes).matrix(made.recipe, 8, 16)
    missing = Recipe("w", codes=replace(codes, zeros="none"))
    with pytest.raises(KeyError):
        made.source().matrix(missing, 8, 16)
    stated = Recipe("w", codes=replace(codes, shape="n"))
    shape = stored("n", "I64", torch.tensor([16, 8]))
    with pytest.raises(PenstockError, match=r"'n' states the shape \[16, 8\], not \[8, 16\]"):
        made.source(n=shape).matrix(stated, 8, 16)
    eight = Recipe("w", codes=replace(codes, layout="awq", bits=8))
    with pytest.raises(PenstockError, match="'w': awq with codes of 8 bits; not read"):
        made.source().matrix(eight, 8, 16)


@pytest.mark.parametrize("dtype", ["I8", "I32", "I64"])
def test_integers_without_scales_are_refused(dtype: str) -> None:
    kind = {"I8": torch.int8, "I32": torch.int32, "I64": torch.int64}[dtype]
    read_from = source(stored("w", dtype, torch.zeros(4, 4, dtype=kind)))
    problem = f"tensor 'w': integers of type {dtype} without scales; not read"
    with pytest.raises(PenstockError, match=problem):
        read_from.matrix(Recipe("w"), 4, 4)
    with pytest.raises(PenstockError, match=problem):
        source(stored("w", dtype, torch.zeros(4, dtype=kind))).vector(Recipe("w"), 4)


def test_a_type_that_is_not_read_is_named() -> None:
    read_from = source(stored("w", "F64", torch.zeros(4, 4, dtype=torch.float64)))
    with pytest.raises(PenstockError, match="tensor 'w' has the type F64; not read"):
        read_from.matrix(Recipe("w"), 4, 4)
