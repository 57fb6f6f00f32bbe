"""Loads the metadata of a checkpoint: everything that the engine needs before it reads weights."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.core import Pooler, Pooling
from penstock.model.errors import ModelError
from penstock.model.families import GGUF_ARCHITECTURES, HF_ARCHITECTURES
from penstock.model.fields import Fields
from penstock.model.files import impostor, read_object, read_optional_object, stored_names
from penstock.model.generation import (
    GenerationDefaults,
    TokenFacts,
    gguf_tokens,
    hf_defaults,
    hf_tokens,
)
from penstock.model.gguf import GgufReader, native_reader, read_header
from penstock.model.headless import BASES, Stored, as_stored
from penstock.model.pooling import gguf_pooling, hf_pooling
from penstock.model.quantised_recipes import are_codes, quantised
from penstock.model.quantization import (
    KEYS,
    MODELOPT,
    Quantization,
    quantization,
    refusal,
    settings,
)
from penstock.model.spec import DecoderSpec, ShortConvolution, WeightRecipes

CONFIG = "config.json"
PICKLES = ("pytorch_model*.bin", "*.pth", "*.pt")
PART = re.compile(r"-\d{5}-of-\d{5}$")
"""End of the file name, without suffix, of one part of a split GGUF file."""
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Validated metadata of a checkpoint. Vocabulary, context length and tied embeddings are in
    `spec`.
    """

    name: str
    """Name of the directory, or of the file without its suffix."""
    source: Literal["gguf", "safetensors"]
    architecture: str
    """The checkpoint's own name for its architecture."""
    paths: tuple[str, ...]
    """Paths that the decoder gets: the GGUF file, or the directory."""
    spec: DecoderSpec
    weights: WeightRecipes
    generation: GenerationDefaults
    tokens: TokenFacts
    pooler: Pooler
    pooling: Pooling
    """How hidden states are pooled for pooled requests."""


def load_model(
    path: Path,
    gguf_reader: GgufReader = native_reader,
    *,
    served: int | None = None,
    dummy: bool = False,
) -> ModelInfo:
    """Read the metadata of a GGUF file or a Hugging Face directory. Reads no weights, and never
    runs code. `served` is the requested maximum length, which some models' rope depends on. A
    `dummy` model needs no weights, but a directory.

    Raises ModelError for any other path, a damaged file, an unknown architecture, any key whose
    value is missing, out of range or not supported, and a model that no backend computes yet.
    """
    info = read_model(path, gguf_reader, served=served, dummy=dummy)
    if feature := unsupported(info.spec):
        raise ModelError(path, f"{feature} are not supported yet")
    return info


def unsupported(spec: DecoderSpec) -> str:
    """The feature of a model that no backend computes yet; empty if there is none."""
    mixers = (layer.mixer for layer in spec.layers)
    has = any(isinstance(mixer, ShortConvolution) for mixer in mixers)
    return "short convolutions" if has else ""


def read_model(
    path: Path,
    gguf_reader: GgufReader = native_reader,
    *,
    served: int | None = None,
    dummy: bool = False,
) -> ModelInfo:
    """As `load_model`, but also for a model that no backend computes yet."""
    if path.is_dir():
        return _load_directory(path, served, dummy=dummy)
    if not path.is_file():
        raise ModelError(path, "no such file or directory")
    if dummy:
        raise ModelError(path, "dummy weights need a directory with a config.json")
    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    if not is_gguf:
        what = impostor(path)
        if what is None and path.suffix == ".safetensors":
            what = "weights alone; name the directory with its config.json"
        raise ModelError(
            path,
            what or "not a GGUF file; a model is a GGUF file or a Hugging Face directory",
        )
    return _load_gguf(path, gguf_reader, served)


def _load_gguf(path: Path, reader: GgufReader, served: int | None) -> ModelInfo:
    header = read_header(path, reader, served)
    general = header.fields("general.")
    architecture = general.text("architecture")
    family = GGUF_ARCHITECTURES.get(architecture)
    if family is None:
        raise general.refuse("architecture", " ".join(GGUF_ARCHITECTURES))
    spec, weights = family(header)
    pooler, pooling = gguf_pooling(header, architecture, spec)
    return ModelInfo(
        name=PART.sub("", path.stem),
        source="gguf",
        architecture=architecture,
        paths=(str(path),),
        spec=spec,
        weights=weights,
        generation=GenerationDefaults(),
        tokens=gguf_tokens(header, spec.vocab),
        pooler=pooler,
        pooling=pooling,
    )


def _load_directory(path: Path, served: int | None, *, dummy: bool) -> ModelInfo:
    config = Fields(path / CONFIG, _read_config(path), served=served)
    if not dummy:
        _check_weights(path)
    architecture, (spec, weights, only) = map_hf(config)
    pooler, pooling = hf_pooling(path, spec, only=only)
    return ModelInfo(
        name=path.resolve().name,
        source="safetensors",
        architecture=architecture,
        paths=(str(path),),
        spec=spec,
        weights=weights,
        generation=hf_defaults(path),
        tokens=hf_tokens(path, config, spec.vocab),
        pooler=pooler,
        pooling=pooling,
    )


def _check_weights(path: Path) -> None:
    """Raise ModelError for a directory without weight files, and for files that are not weights."""
    if not any((path / file).is_file() for file in WEIGHT_FILES):
        pickles = sorted(file.name for pattern in PICKLES for file in path.glob(pattern))
        held = (
            f"; it holds {' '.join(pickles[:3])}, whose format can run code and is not read: "
            "convert it to safetensors"
            if pickles
            else ""
        )
        raise ModelError(
            path, f"the directory has no weights: neither {' nor '.join(WEIGHT_FILES)}{held}"
        )
    for file in sorted(path.glob("model*.safetensors")):
        if file.stat().st_size and (what := impostor(file)):
            raise ModelError(file, what)


def map_hf(config: Fields, modelopt: dict[str, object] | None = None) -> tuple[str, Stored]:
    """Architecture, spec and recipes of a config.json and the files beside it. If there are no
    weights, tensor names of published files are assumed. `modelopt` is the content of the file
    MODELOPT, if that was already read.
    """
    if modelopt is None:
        modelopt = read_optional_object(config.file.with_name(MODELOPT))
    stated = settings(config, modelopt)
    if stated is not None and stated.file != config.file:
        raise refusal(config, modelopt)
    architecture = _hf_architecture(config)
    family = HF_ARCHITECTURES[BASES.get(architecture, architecture)]
    codes = _integer_codes(config, stated)
    if codes is None:
        return architecture, as_stored(config, architecture, *family(config))
    plain = config.changed(dict.fromkeys(KEYS))
    spec, weights, only = as_stored(config, architecture, *family(plain))
    weights = quantised(config, weights, spec, codes, stored_names(config.file.parent))
    return architecture, (spec, weights, only)


def _integer_codes(config: Fields, stated: Fields | None) -> Quantization | None:
    """The settings of integer codes; None for other checkpoints, which their family reads or
    refuses.
    """
    found = None if stated is None else quantization(config)
    return found if found is not None and are_codes(found) else None


def _read_config(path: Path) -> dict[str, object]:
    if not (path / CONFIG).is_file():
        files = sorted(file.name for file in path.glob("*.gguf"))
        remedy = f"; it holds GGUF files, name one of them: {' '.join(files[:5])}" if files else ""
        raise ModelError(path, f"the directory has no {CONFIG}{remedy}")
    return read_object(path / CONFIG)


def _hf_architecture(config: Fields) -> str:
    listed = config.get("architectures")
    for name in listed if isinstance(listed, list) else []:
        if isinstance(name, str) and (name in HF_ARCHITECTURES or name in BASES):
            return name
    raise config.refuse("architectures", " ".join([*HF_ARCHITECTURES, *BASES]))
