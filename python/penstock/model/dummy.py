"""Random weights that replace a checkpoint's weights (`--load-format dummy`).

They have the distributions with which transformers initialises a model: matrices from a normal
distribution with the config's `initializer_range`, norms at one, biases at zero. Layers read
different rows of shared matrices, so that the file has only the size of the embedding and about one
layer.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import IO, Any

from penstock.model.errors import ModelError
from penstock.model.files import read_object
from penstock.model.load import CONFIG, WEIGHT_FILES, ModelInfo
from penstock.model.numbers import (
    BF16,
    F8_E4M3,
    FLOATS,
    SPREAD_F8,
    code_scale,
    codebook,
    mxfp4_exponent,
)
from penstock.model.quantization import Scheme, tensors
from penstock.model.sizing import Matrix, whole
from penstock.model.spec import (
    Attention,
    Codes,
    DecoderSpec,
    Experts,
    LatentAttention,
    Layer,
    Norm,
    Recipe,
    WeightRecipes,
)

EXPERT = "{e}"
SPARE_ROWS = 64
"""Additional rows of a shared matrix, beyond the rows of its largest part, so that no two parts are
equal.
"""
FP8_BLOCK = 128
MXFP4_GROUP = 32
CHUNK = 1 << 20
USUAL_RANGE = 0.02
"""Standard deviation for configs without `initializer_range`, the default of most families."""
CUT_BY_HEADS = ("kv_b",)
"""Matrices of which the native decoder reads the rows of one head at a time. They are not
shared.
"""
OUTSIDE = ("positions", "score")
"""Matrices that `sizing` counts among the vectors."""
_PACKED = ("weight_packed", "weight_scale", "weight_zero_point")
_GPTQ = ("qweight", "scales", "qzeros")
"""Tensors of a matrix of integer codes: codes, scales, zero points. AWQ has GPTQ's names."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file. `pattern`: bytes that are repeated; None: random numbers."""

    dtype: str
    shape: tuple[int, ...]
    pattern: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes in the file."""
        size = {"U8": 1, F8_E4M3: 1, "F32": 4, "I32": 4}.get(self.dtype, 2)
        for dimension in self.shape:
            size *= dimension
        return size


@contextmanager
def dummy_weights(info: ModelInfo, seed: int) -> Iterator[ModelInfo]:
    """Inside the block, `info` with random weights in a temporary file. The file is unlinked, so
    the kernel deletes it when the process ends. Equal seeds give equal weights on all ranks.

    Raises ModelError for a role without a known shape, and if the file cannot be written.
    """
    config = read_object(Path(info.paths[0]) / CONFIG)
    layout = _Layout(info.spec, info.weights, _dtype(config), _spread(config), Random(seed))
    weights = layout.recipes()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-dummy-") as directory,
        tempfile.TemporaryFile() as file,
    ):
        try:
            write(file, layout.tensors, layout.spread, seed)
        except OSError as error:
            size = sum(tensor.size for tensor in layout.tensors.values())
            raise ModelError(
                Path(directory),
                f"{size} bytes of dummy weights cannot be written ({error.strerror or error}); "
                "set TMPDIR to a directory with room",
            ) from error
        link = Path(directory) / WEIGHT_FILES[0]
        link.symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        yield replace(info, paths=(directory,), weights=weights)


def _member(config: Mapping[str, Any], key: str) -> object:
    text = config.get("text_config")
    return config.get(key, text.get(key) if isinstance(text, dict) else None)


def _dtype(config: Mapping[str, Any]) -> str:
    """The type of plain tensors in the notation of safetensors."""
    name = _member(config, "dtype") or _member(config, "torch_dtype")
    return {"float32": "F32", "float16": "F16"}.get(str(name), BF16)


def _spread(config: Mapping[str, Any]) -> float:
    found = _member(config, "initializer_range")
    usable = isinstance(found, (int, float)) and 0 < found < 1
    return float(found) if usable else USUAL_RANGE  # type: ignore[arg-type]


class _Layout:
    """The tensors of the file, and recipes that read a model's weights from them."""

    def __init__(
        self, spec: DecoderSpec, weights: WeightRecipes, dtype: str, spread: float, random: Random
    ) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.spread = spread
        self._spec, self._weights, self._dtype, self._random = spec, weights, dtype, random
        self._matrices = {
            (matrix.layer, role): matrix
            for matrix in whole(spec)
            if (role := _role(matrix, spec)) is not None
        }
        for i, layer in enumerate(spec.layers):
            if isinstance(layer.mixer, LatentAttention):
                self._matrices[i, "kv_b"] = _kv_b(layer.mixer)
        self._rows: dict[str, int] = {}
        for matrix in self._matrices.values():
            name = _shared_name(matrix)
            self._rows[name] = max(self._rows.get(name, 0), matrix.outputs + SPARE_ROWS)

    def recipes(self) -> WeightRecipes:
        spec, own = self._spec, self._weights
        outside = {
            role: self._recipe(None, role, recipe)
            for role in ("embed", "head", *OUTSIDE)
            if (recipe := getattr(own, role)) is not None
        }
        bias = own.final_norm_bias
        return WeightRecipes(
            final_norm=self._norm(spec.final_norm, spec.hidden),
            final_norm_bias=bias and self._constant(spec.hidden, 0.0),
            layers=tuple(
                {role: self._recipe(i, role, recipe) for role, recipe in roles.items()}
                for i, roles in enumerate(own.layers)
            ),
            **outside,
        )

    def _recipe(self, index: int | None, role: str, stored: Recipe) -> Recipe:
        matrix = self._matrices.get((index, role))
        if matrix is None:
            assert index is not None
            return self._vector(index, role)
        if stored.codes is not None:
            return self._words(role, matrix, stored.codes, EXPERT in stored.tensor)
        if stored.scales is not None:
            return self._coded(role, matrix, EXPERT in stored.tensor)
        return self._plain(role, matrix)

    def _plain(self, role: str, matrix: Matrix) -> Recipe:
        if role in CUT_BY_HEADS:
            name = f"{role}.{matrix.outputs}.{matrix.inputs}"
            self._add(name, Tensor(self._dtype, (matrix.outputs, matrix.inputs)))
            return Recipe(name)
        name = _shared_name(matrix)
        rows = self._rows[name]
        stack = (matrix.copies,) if matrix.part == "experts" else ()
        self._add(name, Tensor(self._dtype, (*stack, rows, matrix.inputs)))
        first = self._random.randint(0, rows - matrix.outputs)
        if role == "shared_factor":
            return Recipe(name, expert=first)
        return Recipe(name, rows=(first, first + matrix.outputs))

    def _coded(self, role: str, matrix: Matrix, separate: bool) -> Recipe:
        """A matrix of 8-bit floats in blocks or, for stacked experts, of MXFP4 codes."""
        n, k = matrix.outputs, matrix.inputs
        name = f"{role}.{n}.{k}"
        if matrix.part == "experts" and not separate:
            shape = (matrix.copies, n, k // MXFP4_GROUP)
            self._add(name, Tensor("U8", (*shape, MXFP4_GROUP // 2)))
            scale = bytes([mxfp4_exponent(self.spread)])
            self._add(f"{name}.scales", Tensor("U8", shape, scale))
            return Recipe(name, scales=f"{name}.scales")
        numbers = [f".{e}" for e in range(matrix.copies)] if separate else [""]
        blocks = (-(-n // FP8_BLOCK), -(-k // FP8_BLOCK))
        scale = FLOATS["F32"](self.spread / SPREAD_F8)
        for number in numbers:
            self._add(f"{name}{number}", Tensor(F8_E4M3, (n, k)))
            self._add(f"{name}.scales{number}", Tensor("F32", blocks, scale))
        own = f".{EXPERT}" if separate else ""
        return Recipe(f"{name}{own}", scales=f"{name}.scales{own}")

    def _words(self, role: str, matrix: Matrix, codes: Codes, separate: bool) -> Recipe:
        """A matrix of integer codes packed into words. Zero points are random, too. Groups are
        contiguous, even if the checkpoint's are not.
        """
        scheme = Scheme(codes.layout, "int", codes.bits, (codes.rows, codes.cols))
        scheme = replace(scheme, zero_points=codes.zeros is not None)
        stored = {each.name: each for each in tensors(scheme, matrix.outputs, matrix.inputs)}
        shared = f"{codes.rows}x{codes.cols}"
        form = f"{codes.layout}{codes.bits}.{shared}{'z' if codes.zeros else ''}"
        name = f"{role}.{matrix.outputs}.{matrix.inputs}.{form}"
        own = f".{EXPERT}" if separate else ""
        scale = FLOATS[scheme.scale](code_scale(self.spread, codes.bits))
        code, scales, zeros = _PACKED if codes.layout == "packed" else _GPTQ
        kept = [("", code, None), (".scales", scales, scale)]
        kept += [(".zeros", zeros, None)] if codes.zeros else []
        for number in [f".{e}" for e in range(matrix.copies)] if separate else [""]:
            for kind, each, pattern in kept:
                tensor = stored[each]
                self._add(f"{name}{kind}{number}", Tensor(tensor.dtype, tensor.shape, pattern))
        beside = replace(
            codes,
            scales=f"{name}.scales{own}",
            zeros=f"{name}.zeros{own}" if codes.zeros else None,
            groups=None,
            shape=None,
        )
        return Recipe(f"{name}{own}", codes=beside)

    def _vector(self, index: int, role: str) -> Recipe:
        layer = self._spec.layers[index]
        norm = _norm_of(role, layer)
        if norm is not None:
            return self._norm(norm, self._norm_length(role, layer))
        form, mixer = layer.feed_forward, layer.mixer
        if role == "sinks" and isinstance(mixer, Attention):
            return self._constant(mixer.heads, 0.0)
        if role == "router_correction" and isinstance(form, Experts):
            return self._constant(form.experts, 0.0)
        if role.endswith("norm_bias"):
            return self._constant(self._spec.hidden, 0.0)
        matrix = self._matrices.get((index, role.removesuffix("_bias")))
        if matrix is None:
            raise ModelError(Path(CONFIG), f"no dummy weights for the role {role!r}")
        stack = (matrix.copies,) if matrix.part == "experts" else ()
        return self._constant(matrix.outputs, 0.0, *stack)

    def _norm_length(self, role: str, layer: Layer) -> int:
        mixer = layer.mixer
        if isinstance(mixer, LatentAttention) and role in ("q_a_norm", "kv_a_norm"):
            return mixer.kv_rank if role == "kv_a_norm" else mixer.query_rank or 0
        if isinstance(mixer, Attention) and role in ("q_norm", "k_norm"):
            return mixer.head_dim
        return self._spec.hidden

    def _norm(self, norm: Norm, length: int) -> Recipe:
        return self._constant(length, 0.0 if norm.unit_offset else 1.0)

    def _constant(self, length: int, value: float, *stack: int) -> Recipe:
        name = ".".join(map(str, (f"constant_{value:g}", *stack, length)))
        self._add(name, Tensor(self._dtype, (*stack, length), FLOATS[self._dtype](value)))
        return Recipe(name)

    def _add(self, name: str, tensor: Tensor) -> None:
        self.tensors.setdefault(name, tensor)


def _role(matrix: Matrix, spec: DecoderSpec) -> str | None:
    """Role of a matrix in the recipes; None for tensors that are not read as a matrix."""
    if matrix.part == "vectors":
        return matrix.role if matrix.role in OUTSIDE else None
    if matrix.part == "shared":
        return f"shared_{matrix.role}"
    mixer = None if matrix.layer is None else spec.layers[matrix.layer].mixer
    if matrix.part == "attention" and isinstance(mixer, LatentAttention):
        return {"q_b": "q", "k_b": None, "v_b": None}.get(matrix.role, matrix.role)
    return matrix.role


def _kv_b(mixer: LatentAttention) -> Matrix:
    rows = mixer.heads * (mixer.plain_dim + mixer.value_dim)
    return Matrix("attention", "kv_b", None, rows, mixer.kv_rank)


def _shared_name(matrix: Matrix) -> str:
    """Name of the tensor that plain matrices of this width share. Embedding and output head have
    separate tensors. If a token's embedding were also a row of a layer, its activation would be an
    outlier.
    """
    if matrix.part == "experts":
        return f"experts.{matrix.copies}.{matrix.inputs}"
    inside = matrix.part not in ("embedding", "head") and matrix.role not in OUTSIDE
    return f"{'layers' if inside else 'outside'}.{matrix.inputs}"


def _norm_of(role: str, layer: Layer) -> Norm | None:
    mixer = layer.mixer
    own = {
        "mixer_norm": layer.mixer_norms.before,
        "mixer_norm_after": layer.mixer_norms.after,
        "feed_forward_norm": layer.feed_forward_norms.before,
        "feed_forward_norm_after": layer.feed_forward_norms.after,
    }
    if isinstance(mixer, Attention):
        own |= dict.fromkeys(("q_norm", "k_norm"), mixer.qk_norm)
    if isinstance(mixer, LatentAttention):
        own |= dict.fromkeys(("q_a_norm", "kv_a_norm"), mixer.norm)
    return own.get(role)


def write(file: IO[bytes], tensors: Mapping[str, Tensor], spread: float, seed: int) -> None:
    """Write tensors as safetensors. Zeros are not written but left as holes of a sparse file."""
    header: dict[str, object] = {}
    at = 0
    for name, tensor in tensors.items():
        end = at + tensor.size
        offsets = [at, end]
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name, tensor in tensors.items():
        end = file.tell() + tensor.size
        if tensor.pattern is None or any(tensor.pattern):
            file.writelines(_contents(tensor, spread, Random(f"{seed} {name}")))
        file.seek(end)
    file.truncate()
    file.flush()


def _contents(tensor: Tensor, spread: float, random: Random) -> Iterable[bytes]:
    if tensor.pattern is not None:
        yield tensor.pattern * (tensor.size // len(tensor.pattern))
        return
    planes = codebook(tensor.dtype, spread)
    left = tensor.size // len(planes)
    while left:
        count = min(left, CHUNK)
        drawn = random.randbytes(count)
        out = bytearray(count * len(planes))
        for at, plane in enumerate(planes):
            out[at :: len(planes)] = drawn.translate(plane)
        yield bytes(out)
        left -= count
