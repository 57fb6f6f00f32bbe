"""Checkpoint metadata to DecoderSpec: describes a model without its weights, and without forward
code.
"""

from penstock.model.errors import ModelError
from penstock.model.generation import GenerationDefaults, TokenFacts, sampling_defaults
from penstock.model.load import ModelInfo, load_model
from penstock.model.spec import DecoderSpec, WeightRecipes

__all__ = [
    "DecoderSpec",
    "GenerationDefaults",
    "ModelError",
    "ModelInfo",
    "TokenFacts",
    "WeightRecipes",
    "load_model",
    "sampling_defaults",
]
