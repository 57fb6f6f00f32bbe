"""Reads the metadata of a checkpoint into a DecoderSpec, which describes a decoder without its
weights and without code.
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
