"""Quantised checkpoints: their settings, resolved by module, and the tensors of their matrices. The
meaning of codes belongs to the backends.
"""

from penstock.model.quantization.forms import CpuForm, are_words, cpu_form
from penstock.model.quantization.patterns import Pattern
from penstock.model.quantization.read import (
    KEYS,
    MODELOPT,
    modelopt_settings,
    number_type,
    quantization,
    refusal,
    settings,
)
from penstock.model.quantization.scheme import Scheme, StoredTensor, tensors
from penstock.model.quantization.settings import LINEAR, Quantization, Rule

__all__ = [
    "KEYS",
    "LINEAR",
    "MODELOPT",
    "CpuForm",
    "Pattern",
    "Quantization",
    "Rule",
    "Scheme",
    "StoredTensor",
    "are_words",
    "cpu_form",
    "modelopt_settings",
    "number_type",
    "quantization",
    "refusal",
    "settings",
    "tensors",
]
