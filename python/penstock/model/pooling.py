"""Determines from the files of a checkpoint how hidden states are pooled to a vector."""

import json
from pathlib import Path

from penstock.core import Pooler, PoolerOutput, Pooling
from penstock.model.errors import ModelError
from penstock.model.fields import Fields
from penstock.model.files import read_object
from penstock.model.gguf import GgufHeader
from penstock.model.spec import DecoderSpec

MODULES = "modules.json"
"""File with the list of modules of a sentence-transformers model."""
_MODES = {
    "lasttoken": Pooling.LAST,
    "mean": Pooling.MEAN,
    "pooling_mode_lasttoken": Pooling.LAST,
    "pooling_mode_mean_tokens": Pooling.MEAN,
}
_GGUF_TYPES = {1: Pooling.MEAN, 3: Pooling.LAST}
_PARTS = ("Transformer", "Pooling", "Normalize")
LARGEST_MODULES = 1 << 20


def hf_pooling(directory: Path, spec: DecoderSpec, *, only: bool) -> tuple[Pooler, Pooling]:
    """Pooling from modules.json and its pooling configuration; by default the last token's state,
    scaled to unit length. `only`: the checkpoint has no output head.
    """
    if spec.labels is not None:
        return Pooler(PoolerOutput.LABELS, spec.labels, only=True), Pooling.LAST
    output, pooling = PoolerOutput.UNIT_EMBEDDING, Pooling.LAST
    if modules := _modules(directory / MODULES):
        output = PoolerOutput.EMBEDDING
        for kind, path in modules:
            if kind not in _PARTS:
                raise ModelError(
                    directory / MODULES, f"{kind} is not built; supported: {' '.join(_PARTS)}"
                )
            if kind == "Normalize":
                output = PoolerOutput.UNIT_EMBEDDING
            if kind == "Pooling":
                pooling = _pooling(directory / Path(path).name / "config.json")
    return Pooler(output, spec.hidden, only), pooling


def gguf_pooling(
    header: GgufHeader, architecture: str, spec: DecoderSpec
) -> tuple[Pooler, Pooling]:
    """Pooling from the key `pooling_type`; by default as in `hf_pooling`."""
    fields = header.fields(f"{architecture}.")
    pooling = Pooling.LAST
    if fields.get("pooling_type"):
        found = _GGUF_TYPES.get(fields.integer("pooling_type", 0, 255))
        if found is None:
            raise fields.refuse("pooling_type", "1 (mean) or 3 (last token)")
        pooling = found
    return Pooler(PoolerOutput.UNIT_EMBEDDING, spec.hidden), pooling


def _modules(file: Path) -> list[tuple[str, str]]:
    """Class and path of each module; empty without the file."""
    if not file.is_file():
        return []
    try:
        with file.open("rb") as opened:
            listed = json.loads(opened.read(LARGEST_MODULES))
        return [(str(each["type"]).rpartition(".")[2], str(each["path"])) for each in listed]
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        raise ModelError(file, f"no list of modules with type and path: {error}") from error


def _pooling(file: Path) -> Pooling:
    """The pooling mode in the configuration of a pooling module, given as `pooling_mode` or as the
    one flag that is true.
    """
    fields = Fields(file, read_object(file))
    if fields.get("pooling_mode") is not None:
        modes = {"pooling_mode": fields.text("pooling_mode")}
    else:
        flags = [key for key, value in read_object(file).items() if value is True]
        modes = {key: key for key in flags if key.startswith("pooling_mode_")}
    found = [_MODES.get(mode) for mode in modes.values()]
    if len(found) != 1 or found[0] is None:
        named = " ".join(modes.values()) or "none"
        raise ModelError(file, f"pooling by {named}; supported: lasttoken, or mean")
    return found[0]
