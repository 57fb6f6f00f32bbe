"""Relates names and patterns in a checkpoint's quantisation settings to the matrices of a
decoder.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property, partial

from penstock.model.quantization import Pattern
from penstock.model.sizing import Matrix, Part, whole
from penstock.model.spec import DecoderSpec, Experts, Recipe, WeightRecipes

Key = tuple[int | None, Part, str]
"""Identifies a matrix: layer (None outside layers), part of the model, and role in it."""
LAST = "\U0010ffff"
"""A character that sorts after every character in a name; used as the end of a range of names."""
PATIENCE = 10.0
"""CPU seconds that matching all regular expressions of one checkpoint may take."""
_BASES = ("model.", "language_model.model.", "model.language_model.", "")
_ATTENTION = ("self_attn", "attention", "attn")
_NAMES: dict[str, tuple[str, ...]] = {
    "q": ("q_proj", "qkv_proj"),
    "k": ("k_proj", "qkv_proj"),
    "v": ("v_proj", "qkv_proj"),
    "o": ("o_proj",),
    "q_a": ("q_a_proj",),
    "q_b": ("q_b_proj",),
    "kv_a": ("kv_a_proj_with_mqa",),
    "k_b": ("kv_b_proj",),
    "v_b": ("kv_b_proj",),
    "in": ("in_proj_qkv", "in_proj_z", "in_proj_qkvz", "in_proj"),
    "out": ("out_proj",),
    "gate": ("gate_proj", "w1", "gate_up_proj"),
    "up": ("up_proj", "w3", "gate_up_proj", "fc1", "c_fc"),
    "down": ("down_proj", "w2", "fc2", "c_proj"),
}
"""Names of the module with each role's weights, alone or fused with other roles."""
_PLACES: dict[str, tuple[str, ...]] = {
    "dense": ("mlp", "feed_forward"),
    "experts": ("mlp.experts", "block_sparse_moe.experts", "feed_forward.experts", "moe.experts"),
    "shared": (
        "mlp.shared_experts",
        "mlp.shared_expert",
        "block_sparse_moe.shared_experts",
        "feed_forward.shared_expert",
        "share_expert",
    ),
}
_ROUTERS = {
    "router": ("mlp.gate", "mlp.router", "block_sparse_moe.gate", "feed_forward.router"),
    "shared_factor": ("mlp.shared_expert_gate",),
}
_OUTSIDE = re.compile(
    r"norm|vis(ion|ual)|audio|image|mm_|multi_?modal|projector|patch|merger|mtp|nextn|draft|index"
    r"|conv|in_proj_(a|b|ba)\b|e_score|bias|embed|rotary|eh_proj|head|score|classifier|A_log"
    r"|dt_|\bgate\b|shared_expert_gate|router|kv_a_proj\b|scale|encoder"
)
"""Words in the names of vectors, and of matrices outside the decoder's layers."""
_STORED = {"k_b": "kv_b", "v_b": "kv_b", "q_b": "q"}
"""Roles of matrices whose recipe may have another role."""
_VECTORS = ("Embedding", "LayerNorm", "RMSNorm")
"""Classes of modules that settings may exclude, and that no tool quantises by default."""


class Modules:
    """The matrices of a decoder, which can be looked up by the names that checkpoints use: those
    of `weights`, and if these do not match or are not known, the usual ones.
    """

    def __init__(self, spec: DecoderSpec, weights: WeightRecipes | None = None) -> None:
        self._layers = len(spec.layers)
        self.matrices: list[tuple[Key, Matrix]] = [
            ((matrix.layer, matrix.part, matrix.role), matrix)
            for matrix in whole(spec)
            if matrix.part != "vectors"
        ]
        """The matrices that can be quantised."""
        self._ends = {
            i: (0, layer.feed_forward.experts - 1)
            for i, layer in enumerate(spec.layers)
            if isinstance(layer.feed_forward, Experts)
        }
        self._weights = weights
        self._seconds = 0.0

    @cached_property
    def _stored(self) -> _Names:
        weights = self._weights
        return _Names([]) if weights is None else self._index(partial(_stored_names, weights))

    @cached_property
    def _usual(self) -> _Names:
        return self._index(_names, bases=_BASES)

    def _index(
        self,
        names_of: Callable[[Matrix, tuple[int, int] | None], Iterator[str]],
        bases: tuple[str, ...] = ("",),
    ) -> _Names:
        return _Names(
            [
                (name, key)
                for key, matrix in self.matrices
                for name in names_of(
                    matrix, self._ends.get(-1 if matrix.layer is None else matrix.layer)
                )
            ],
            bases,
        )

    def matching(self, pattern: Pattern) -> set[Key] | None:
        """The matrices that a pattern matches. None if it matches neither a known matrix nor a part
        of the model that sizes leave out. Raises `re.error` for an expression that takes too long.
        """
        found = self._among(self._stored, pattern) or self._among(self._usual, pattern)
        return found if found or self._is_outside(pattern.text) else None

    def _among(self, names: _Names, pattern: Pattern) -> set[Key]:
        text = pattern.text
        match pattern.kind:
            case "name":
                return names.whole.get(text, set())
            case "path":
                return names.with_words(_stripped(text.strip(".")))
            case "glob":
                start = re.split(r"[*?]", text, maxsplit=1)[0]
                return self._by_expression(pattern, names, _with_prefix(names.sorted, start))
            case _:
                return self._by_expression(pattern, names, names.sorted)

    def _by_expression(self, pattern: Pattern, names: _Names, some: list[str]) -> set[Key]:
        found: set[Key] = set()
        began = time.process_time()
        for name in some:
            if self._seconds + time.process_time() - began > PATIENCE:
                raise re.error(f"all expressions take more than {PATIENCE:g} seconds")
            if not names.whole[name] <= found and pattern.matches(name):
                found |= names.whole[name]
        self._seconds += time.process_time() - began
        return found

    def _is_outside(self, pattern: str) -> bool:
        """Whether a name refers to a part of the model that is known but that sizes leave out."""
        if pattern in _VECTORS:
            return True
        layer = re.search(r"layers\\?\.(\d+)", pattern)
        if layer and int(layer[1]) >= self._layers:
            return True  # A multi-token prediction layer.
        return bool(_OUTSIDE.search(pattern) or re.search(r"experts\.\d", pattern))


class _Names:
    """Matrices by the names of their modules, each with every prefix of `bases`."""

    def __init__(self, names: list[tuple[str, Key]], bases: tuple[str, ...] = ("",)) -> None:
        self._names, self._bases = names, bases

    @cached_property
    def whole(self) -> dict[str, set[Key]]:
        """The matrices by complete name."""
        found: dict[str, set[Key]] = defaultdict(set)
        for name, key in self._names:
            for base in self._bases:
                found[base + name].add(key)
        return found

    @cached_property
    def sorted(self) -> list[str]:
        return sorted(self.whole)

    @cached_property
    def _suffixes(self) -> dict[str, list[Key]]:
        """The matrices by name without its prefix before `layers`, and by the rest of it after each
        dot.
        """
        found: dict[str, list[Key]] = defaultdict(list)
        for name, key in self._names:
            rest = _stripped(name)
            while rest:
                found[rest].append(key)
                rest = rest.partition(".")[2]
        return found

    @cached_property
    def _sorted_suffixes(self) -> list[str]:
        return sorted(self._suffixes)

    def with_words(self, words: str) -> set[Key]:
        """The matrices whose names contain these consecutive words."""
        found = set(self._suffixes.get(words, ()))
        for suffix in _with_prefix(self._sorted_suffixes, f"{words}."):
            found.update(self._suffixes[suffix])
        return found


def _stored_names(
    weights: WeightRecipes, matrix: Matrix, ends: tuple[int, int] | None
) -> Iterator[str]:
    """The names of a matrix's module in a checkpoint whose tensors are known."""
    recipe = _recipe(weights, matrix)
    if recipe is None:
        return
    for end in ends or (0,):
        yield recipe.module.replace("{e}", str(end))


def _recipe(weights: WeightRecipes, matrix: Matrix) -> Recipe | None:
    if matrix.layer is None:
        return weights.head if matrix.part == "head" else weights.embed
    roles = weights.layers[matrix.layer]
    role = f"shared_{matrix.role}" if matrix.part == "shared" else matrix.role
    return roles.get(role) or roles.get(_STORED.get(role, role))


def _names(matrix: Matrix, ends: tuple[int, int] | None) -> Iterator[str]:
    """The names of a matrix in checkpoints, without the prefix before `layers`."""
    if matrix.layer is None:
        yield "lm_head" if matrix.part == "head" else "embed_tokens"
        return
    base = f"layers.{matrix.layer}"
    if matrix.part == "router":
        yield from (f"{base}.{name}" for name in _ROUTERS[matrix.role])
        return
    places = _PLACES.get(matrix.part, _ATTENTION)
    if matrix.role in ("in", "out"):
        places = ("linear_attn",)
    for place in places:
        for name in _NAMES[matrix.role]:
            yield f"{base}.{place}.{name}"
            if matrix.part == "experts" and ends:
                yield from (f"{base}.{place}.{end}.{name}" for end in ends)


def _with_prefix(texts: list[str], prefix: str) -> list[str]:
    """All texts of a sorted list that begin with `prefix`."""
    return texts[bisect_left(texts, prefix) : bisect_left(texts, prefix + LAST)]


def _stripped(name: str) -> str:
    """The name without the prefix before `layers` or `lm_head`."""
    return re.sub(r"^((language_model|model|text_model|transformer|backbone)\.)+", "", name)
