"""Finds how each weight matrix of a checkpoint is stored, from its quantisation settings."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.core import PenstockError, shortened
from penstock.model.fields import Fields
from penstock.model.quantization import Pattern, Quantization, Scheme
from penstock.model.sizing import Matrix
from penstock_ops.plan.modules import Key, Modules

REMEDY = "name what most weights are with --weights of penstock plan"


def schemes(found: Quantization, modules: Modules) -> dict[Key, Scheme]:
    """The scheme of each quantised matrix. PenstockError names patterns that match no matrix, and
    matrices that the scheme cannot store.
    """
    decided: dict[Key, Scheme | None] = {}
    for rule in found.rules:
        for key in _matching(modules, rule.pattern):
            decided.setdefault(key, rule.scheme)
    kept: dict[Key, Scheme] = {}
    for key, matrix in modules.matrices:
        scheme = decided.get(key, found.parts.get(key[1]))
        if scheme is None:
            continue
        kept[key] = scheme
        if misfit := scheme.misfit(*stored_shape(matrix)):
            where = "" if matrix.layer is None else f"layer {matrix.layer}, "
            problem = f"{where}{matrix.part} {matrix.role}: {misfit}"
            raise PenstockError(f"quantization_config: {problem}; {REMEDY}")
    return kept


def stored_shape(matrix: Matrix) -> tuple[int, int]:
    """Outputs and inputs of a matrix in the checkpoint. Both matrices of latent attention have the
    latent's numbers as inputs there.
    """
    if matrix.role == "k_b":
        return matrix.inputs, matrix.outputs
    return matrix.outputs, matrix.inputs


def _matching(modules: Modules, pattern: Pattern) -> set[Key]:
    shown = shortened(repr(pattern.text), 80)
    try:
        found = modules.matching(pattern)
    except re.error as error:
        raise PenstockError(
            f"{pattern.key}: {shown} is not a supported regular expression: {error}; {REMEDY}"
        ) from error
    if found is None:
        problem = f"{pattern.key}: {shown} names no matrix that is known"
        raise PenstockError(f"{problem}; the size of these weights is not known here; {REMEDY}")
    return found


def kv_type(settings: Fields | None) -> str:
    """The KV type that a checkpoint's settings request: `fp8`, or empty."""
    if settings is None:
        return ""
    scheme = settings.get("kv_cache_scheme")
    algorithm = settings.get("kv_cache_quant_algo") or (scheme if isinstance(scheme, str) else "")
    if str(algorithm).upper() == "FP8":
        return "fp8"
    return "fp8" if isinstance(scheme, Mapping) and _is_fp8(scheme) else ""


def _is_fp8(scheme: Mapping[str, object]) -> bool:
    return scheme.get("num_bits") == 8 and scheme.get("type") == "float"
