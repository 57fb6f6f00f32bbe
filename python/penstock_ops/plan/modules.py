"""Relates names and patterns in a checkpoint's quantisation settings to the matrices of a
decoder.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from penstock.model.sizing import Matrix, Part, whole
from penstock.model.spec import DecoderSpec, Experts
from penstock_ops.plan.expressions import compiled

Key = tuple[int | None, Part, str]
"""Identifies a matrix: layer (None outside layers), part of the model, and role in it."""
_WILD = {"*": ".*", "?": "."}
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


class Modules:
    """The matrices of a decoder, which can be looked up by the names that checkpoints use."""

    def __init__(self, spec: DecoderSpec) -> None:
        self._spec = spec
        self.matrices: list[tuple[Key, Matrix]] = [
            ((matrix.layer, matrix.part, matrix.role), matrix)
            for matrix in whole(spec)
            if matrix.part != "vectors"
        ]
        """The matrices that can be quantised."""
        self._seconds = 0.0

    @cached_property
    def _names(self) -> list[tuple[str, Key]]:
        """Each name of each matrix, without the prefix before `layers`."""
        ends = {
            i: (0, layer.feed_forward.experts - 1)
            for i, layer in enumerate(self._spec.layers)
            if isinstance(layer.feed_forward, Experts)
        }
        return [
            (name, key)
            for key, matrix in self.matrices
            for name in _names_of(matrix, ends.get(-1 if matrix.layer is None else matrix.layer))
        ]

    @cached_property
    def _full(self) -> dict[str, set[Key]]:
        """The matrices by complete name."""
        found: dict[str, set[Key]] = defaultdict(set)
        for name, key in self._names:
            for base in _BASES:
                found[base + name].add(key)
        return found

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self._full)

    @cached_property
    def _suffixes(self) -> dict[str, list[Key]]:
        """The matrices by name, and by the rest of a name after each dot."""
        found: dict[str, list[Key]] = defaultdict(list)
        for name, key in self._names:
            rest = name
            while rest:
                found[rest].append(key)
                rest = rest.partition(".")[2]
        return found

    @cached_property
    def _sorted_suffixes(self) -> list[str]:
        return sorted(self._suffixes)

    def matching(self, pattern: str) -> set[Key] | None:
        """The matrices that a pattern matches: a name, a glob, or `re:` with a regular expression.
        None if it matches neither a known matrix nor a part of the model that sizes leave out.
        Raises `re.error` for an invalid expression, and for one that takes too long.
        """
        if pattern.startswith("re:"):
            found = self._by_expression(compiled(pattern[3:]), self._sorted)
        elif wild := re.search(r"[*?]", pattern):
            # A pattern matches a module if it matches the module's name or that of a module that
            # contains it.
            wanted = "".join(_WILD.get(each, re.escape(each)) for each in pattern)
            whole_name = compiled(rf"{wanted}(\..*)?\Z")
            names = _with_prefix(self._sorted, pattern[: wild.start()])
            found = self._by_expression(whole_name, names)
        else:
            found = self._by_words(_stripped(pattern.strip(".")))
        return found if found or self._is_outside(pattern) else None

    def _by_words(self, words: str) -> set[Key]:
        """The matrices whose names contain these consecutive words."""
        found = set(self._suffixes.get(words, ()))
        for suffix in _with_prefix(self._sorted_suffixes, f"{words}."):
            found.update(self._suffixes[suffix])
        return found

    def _by_expression(self, expression: re.Pattern[str], names: list[str]) -> set[Key]:
        found: set[Key] = set()
        began = time.process_time()
        for name in names:
            if self._seconds + time.process_time() - began > PATIENCE:
                raise re.error(f"all expressions take more than {PATIENCE:g} seconds")
            if not self._full[name] <= found and expression.match(name):
                found |= self._full[name]
        self._seconds += time.process_time() - began
        return found

    def _is_outside(self, pattern: str) -> bool:
        """Whether a name refers to a part of the model that is known but that sizes leave out."""
        layer = re.search(r"layers\\?\.(\d+)", pattern)
        if layer and int(layer[1]) >= len(self._spec.layers):
            return True  # A multi-token prediction layer.
        return bool(_OUTSIDE.search(pattern) or re.search(r"experts\.\d", pattern))


def _names_of(matrix: Matrix, ends: tuple[int, int] | None) -> Iterator[str]:
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
