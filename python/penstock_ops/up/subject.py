"""The model of a plan: whether files are of that model, by their size."""

from __future__ import annotations

from pathlib import Path

from penstock.core import PenstockError
from penstock.model.sizing import parameters
from penstock_ops.plan.subject import read_subject

ALIKE = 0.1
"""Share by which the number of parameters may differ: files tie or leave out matrices."""


def directory_of(path: Path) -> str:
    """The directory of a model's files."""
    return str(path if path.is_dir() else path.parent)


def check_size(path: Path, name: str, planned: int) -> None:
    """Raise PenstockError if the model at `path` has another size than the plan's."""
    if error := size_error(str(path), parameters(read_subject(str(path)).spec), name, planned):
        raise PenstockError(error)


def size_error(path: str, size: int, name: str, planned: int) -> str:
    """Why a model of `size` parameters is not the plan's; empty if it may be. Digests cannot be
    compared, because plans by name use a catalogue, which has no files.
    """
    if abs(size - planned) <= ALIKE * planned:
        return ""
    return (
        f"{path} has {size:,} parameters, the plan's {name} {planned:,}: name its model by "
        "--model, or make a plan for this one"
    )
