"""Reads the model to plan for: its sizes from its metadata, and whether a backend here can run it.

The model is given by a `config.json`, a directory in Hugging Face's format, or a GGUF file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from penstock.core import InvalidValueError, PenstockError
from penstock.hub import ALIASES, Packaged, canonical_alias, locate
from penstock.hub.locate import cached_configuration, configuration, is_here
from penstock.model.errors import ModelError
from penstock.model.families import HF_ARCHITECTURES
from penstock.model.fields import Fields
from penstock.model.files import read_object, read_optional_object, safetensors_header
from penstock.model.gguf import TensorRow, native_reader
from penstock.model.headless import BASES
from penstock.model.load import CONFIG, map_hf, read_model, unsupported
from penstock.model.quantization import (
    KEYS,
    MODELOPT,
    modelopt_settings,
    number_type,
    quantization,
    settings,
)
from penstock.model.sizing import Matrix, Part
from penstock.model.spec import DecoderSpec, Layer, WeightRecipes
from penstock_ops.plan.catalogue import Entry, find, hint
from penstock_ops.plan.keys import COMPARED
from penstock_ops.plan.quantised import REMEDY, kv_type
from penstock_ops.plan.shape import read_shape, text_part
from penstock_ops.plan.weights import PARTS, WeightTypes, stored, uniform

INDEX = "model.safetensors.index.json"
DRAFTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Keys for the number of multi-token prediction layers; publishers use different ones."""
_USED = re.compile(r"(text_config\.)?(architectures|model_type|(torch_)?dtype|(bos|eos)_token_id)")
"""Keys that `stored` and `hf_tokens` read, or that `architectures` stands for."""
FORMS = {"Q4_0": "s4", "Q4_1": "w4", "Q4_K": "w4", "MXFP4": "mx4"}
FLOATS = ("F32", "F16", "BF16")
"""Types of GGUF tensors with plain floats, which the native decoder packs as bf16. FORMS has its
packed format for quantised types; one that FORMS does not list is packed as w8.
"""
TENSORS: tuple[tuple[str, Part], ...] = (
    ("token_embd", "embedding"),
    ("ffn_gate_inp", "router"),
    ("shexp", "shared"),
    ("exps", "experts"),
    ("ffn_", "dense"),
    ("attn_", "attention"),
    ("shortconv.in_proj", "attention"),
    ("shortconv.out_proj", "attention"),
    ("output.weight", "head"),
)
"""(text, part of the model): a GGUF matrix belongs to the part of the first entry whose text occurs
in its name.
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """The model to plan for."""

    name: str
    digest: str
    """SHA-256 in hexadecimal of config.json, or of a GGUF file's list of tensors."""
    spec: DecoderSpec
    weights: WeightTypes
    file_bytes: int | None
    """Bytes of all tensors in the checkpoint; None if it has neither weights nor an index
    of them.
    """
    refused: str
    """Why no backend of this Penstock version can run the model; empty if one can."""
    notes: tuple[str, ...] = ()
    """Notes for the user, for example about parts of the model that the sizes leave out."""
    kv: str = ""
    """Number type that the checkpoint requests for KV; empty if it requests none."""
    is_of_family: bool = True
    """Whether a model family read the metadata. Otherwise only the sizes in `spec` are known."""
    path: Path | None = None
    """File or directory with the weights; None without weights."""
    unread: tuple[str, ...] = ()
    """Keys of config.json that nothing reads; empty for a model that is refused, and for one
    without a config.json.
    """


def read_subject(name: str, weights: str | None = None) -> Subject:
    """The model at a path, behind an alias, in the hub's cache on this machine, in the catalogue,
    or on the hub, of which config.json alone is downloaded; whichever of them is first. `weights`
    is the number type that the user requests for weights.

    Raises PenstockError if it is not a model, and for shapes that cannot be sized.
    """
    if not name.strip():
        raise InvalidValueError("MODEL", name, "a path, an alias, or a name of the catalogue")
    name = canonical_alias(name)
    if not os.path.exists(name) and not _is_file_of_alias(name):
        entry = find(name)
        full = entry.name if entry else name
        if (copy := cached_configuration(full)) is not None:
            return _of_hub(full, copy, weights)
        if entry is not None:
            return of_catalogue(entry, weights)
        if (copy := configuration(full)) is not None:
            return _of_hub(full, copy, weights)
    path = Path(name) if os.path.exists(name) else _located(name)
    if path.is_file() and path.suffix != ".json":
        return _read_gguf(name, path)
    return _read_config(path if path.is_file() else path / CONFIG, weights)


def of_catalogue(entry: Entry, weights: str | None = None) -> Subject:
    """The model of an entry of the catalogue. Raises PenstockError as read_subject does."""
    # Not a real path: no file on this machine accompanies a catalogue entry.
    file = Path(f"catalogue:{entry.name}") / CONFIG
    read = _subject(file, dict(entry.config), dict(entry.quantised), weights)
    note = (
        f"shape of {entry.name} from the catalogue (source: {entry.source}, {entry.date}; "
        "revision not recorded); a path to a config.json is read instead"
    )
    digest = hashlib.sha256(json.dumps(entry.config, sort_keys=True).encode()).hexdigest()
    return replace(read, name=entry.short, digest=digest, notes=(note, *read.notes), unread=())


def _of_hub(name: str, directory: Path, weights: str | None) -> Subject:
    read = _read_config(directory / CONFIG, weights)
    note = f"config.json of {name} from the hub, revision {directory.name}"
    return replace(read, name=name.rpartition("/")[2], notes=(note, *read.notes))


def _is_file_of_alias(name: str) -> bool:
    """Whether a name is an alias whose file is on this machine, or not on any hub."""
    return name in ALIASES and (isinstance(ALIASES[name], Packaged) or is_here(name))


def _located(name: str) -> Path:
    try:
        return locate(name, download=False).path
    except PenstockError as error:
        if name in ALIASES:
            raise
        close = hint(name)
        # The catalogue's suggestion is closer than the alias, and one suggestion is enough.
        text = str(error).partition("; did you mean ")[0] if close else str(error)
        raise PenstockError(f"{text}, nor is it in `penstock plan --list-models`{close}") from error


def _read_config(file: Path, weights: str | None) -> Subject:
    if not file.is_file():
        raise ModelError(file.parent, f"the directory has no {CONFIG}")
    read = _subject(
        file, read_object(file), read_optional_object(file.with_name(MODELOPT)), weights
    )
    return replace(
        read,
        digest=hashlib.sha256(file.read_bytes()).hexdigest(),
        file_bytes=_safetensors_bytes(file.parent),
        path=file.parent if any(file.parent.glob("*.safetensors")) else None,
    )


def _subject(
    file: Path, raw: dict[str, object], quantised: dict[str, object], weights: str | None
) -> Subject:
    """The model of a config.json with the content `raw`. `file` is its location for errors,
    `quantised` the content of the file MODELOPT next to it.
    """
    values = text_part(raw)
    config, whole = Fields(file, values), Fields(file, raw)
    spec, recipes, refused = _spec(whole, config, quantised)
    own = {**values, **{key: raw[key] for key in KEYS if key in raw}}
    stated = Fields(file, own, read=whole.read)
    return Subject(
        name=file.resolve().parent.name if file.name == CONFIG else file.stem,
        digest="",
        spec=spec,
        weights=uniform(weights) if weights else _stored(stated, quantised, spec, recipes),
        kv=kv_type(modelopt_settings(stated, quantised) or settings(stated, quantised)),
        file_bytes=None,
        refused=refused,
        notes=(*_notes(raw, config), *(() if recipes else _by_keys(config))),
        is_of_family=recipes is not None,
        unread=() if refused else tuple(key for key in whole.unread() if not _USED.fullmatch(key)),
    )


def _stored(
    config: Fields,
    quantised: dict[str, object],
    spec: DecoderSpec,
    recipes: WeightRecipes | None,
) -> WeightTypes:
    """The types that a checkpoint states. Raises PenstockError, which names the flag that states
    them instead.
    """
    try:
        found = quantization(config, quantised)
    except ModelError as error:
        raise PenstockError(f"{error}; {REMEDY}") from error
    return stored(number_type(config), found, spec, recipes)


def _spec(
    whole: Fields, config: Fields, quantised: dict[str, object]
) -> tuple[DecoderSpec, WeightRecipes | None, str]:
    """The model's DecoderSpec, the names of its tensors, and text why no backend can run it.
    Without a model family that supports it, the spec has only sizes, and no names are known.
    `config` is the part of `whole` for text.
    """
    listed = whole.get("architectures")
    name = str(listed[0]) if isinstance(listed, list) and listed else ""
    if BASES.get(name, name) not in HF_ARCHITECTURES:
        return (
            _shared(read_shape(config)),
            None,
            f"no backend runs {name or 'this architecture'} yet",
        )
    refused = ""
    plain = whole.changed(dict.fromkeys(KEYS))
    for fields, beside in ((whole, quantised), (plain, {})):
        try:
            _, (spec, recipes, _) = map_hf(fields, beside)
            return _shared(spec), recipes, refused or _unsupported(spec)
        except ModelError as error:
            refused = refused or f"no backend runs it yet: {error}"
    return _shared(read_shape(config)), None, refused


def _unsupported(spec: DecoderSpec) -> str:
    feature = unsupported(spec)
    return feature and f"no backend computes {feature} yet"


def _shared(spec: DecoderSpec) -> DecoderSpec:
    """The spec with equal layers as one object, so that `counted` processes them only once."""
    seen: dict[Layer, Layer] = {}
    return replace(spec, layers=tuple(seen.setdefault(layer, layer) for layer in spec.layers))


def _notes(raw: Mapping[str, object], config: Fields) -> list[str]:
    notes = []
    if any(key in raw for key in ("vision_config", "audio_config")):
        notes.append("an image or audio tower is not counted")
    drafts = next((config.get(key) for key in DRAFTS if config.get(key)), None)
    if drafts:
        notes.append(f"{drafts} layer(s) for drafting tokens are not counted")
    index = config.get("index_head_dim")
    if index:
        notes.append(f"the index of sparse attention ({index} numbers a token) is not counted")
    return notes


def _by_keys(config: Fields) -> list[str]:
    """A note if the sizes come from keys alone and no test compares this model type with a
    published size.
    """
    kind = str(config.get("model_type") or "")
    if kind in COMPARED:
        return []
    compared = f"no model of type {kind!r} has been compared with its published size"
    return [f"sized by the keys of config.json alone: {compared}"]


def _safetensors_bytes(directory: Path) -> int | None:
    index = read_optional_object(directory / INDEX).get("metadata")
    total = index.get("total_size") if isinstance(index, dict) else None
    if isinstance(total, int):
        return total
    files = sorted(directory.glob("*.safetensors"))
    return sum(_header_bytes(file) for file in files) if files else None


def _header_bytes(file: Path) -> int:
    """Bytes of all tensors in a safetensors file, from its header alone. Raises ModelError."""
    ends = [0]
    for name, entry in safetensors_header(file).items():
        match entry:
            case _ if name == "__metadata__":
                continue
            case {"data_offsets": [int(), int(end)]}:
                ends.append(end)
            case _:
                raise ModelError(file, f"the header has no data_offsets for {name!r}")
    return max(ends)


def _read_gguf(name: str, path: Path) -> Subject:
    """The model in a GGUF file. Raises ModelError for an architecture without a model family."""
    info = read_model(path)
    rows = cast("Sequence[TensorRow]", native_reader(str(path))["tensors"])
    return Subject(
        name=info.name if Path(name).exists() else name,
        digest=hashlib.sha256(json.dumps([list(row) for row in rows]).encode()).hexdigest(),
        spec=_shared(info.spec),
        weights=_gguf_types(rows),
        file_bytes=path.stat().st_size,
        refused=_unsupported(info.spec),
        path=path,
    )


def _gguf_types(rows: Sequence[TensorRow]) -> WeightTypes:
    """Number types of the parts of a GGUF model as the native decoder packs them: average bytes of
    a weight in each part.
    """
    numbers, size, kinds = Counter[Part](), Counter[Part](), Counter[str]()
    for name, kind, shape in rows:
        part = next((part for mark, part in TENSORS if mark in name), None)
        if part is None or len(shape) < 2 or not name.endswith(".weight"):
            continue
        matrix = Matrix(part, name, None, shape[-2], shape[-1], math.prod(shape[:-2]))
        form = "f32" if part == "router" else FORMS.get(kind, "w8")
        numbers[part] += matrix.numbers
        size[part] += matrix.packed("bf16" if kind in FLOATS and form == "w8" else form)
        kinds[kind] += matrix.numbers
    parts: dict[Part, str] = {
        part: f"{part} as stored" if numbers[part] else "f32" for part in PARTS
    }
    other = {f"{part} as stored": size[part] / numbers[part] for part in numbers}
    return WeightTypes(kinds.most_common(1)[0][0], parts, other)
