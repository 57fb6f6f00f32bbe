"""Recipes: TOML files with the command, environment and requirements of a server."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.core import PenstockError

BUILT_IN = Path(__file__).parent / "recipes"
_PLACEHOLDER = re.compile(r"\{([a-z]+)\}")
_KINDS: Mapping[str, tuple[type[object], str]] = {
    "note": (str, "a string"),
    "command": (list, "a list of strings"),
    "environment": (dict, "a table of strings"),
    "ready_path": (str, "a string"),
    "version_command": (list, "a list of strings"),
    "requires": (list, "a list of strings"),
    "install": (str, "a string"),
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to start a server. Words of commands may contain the placeholders of `Values`.
    `{penstock}` must be a whole word, because it stands for several words.
    """

    name: str
    command: Sequence[str]
    note: str = ""
    """Text for the report: numerics of the model, and other facts that affect the measurements."""
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/v1/models"
    """URL path that answers 200 when the server is ready."""
    version_command: Sequence[str] = ()
    requires: Sequence[str] = ()
    """Files or directories that must exist before the server can start."""
    install: str = ""
    """Command that creates the paths in `requires`, for the error message."""
    here: Path = Path()
    """Directory of the recipe file."""


@dataclass(frozen=True, slots=True)
class Values:
    """Values of the placeholders `{port}`, `{threads}`, `{cpus}`, `{model}`, `{peers}`,
    `{penstock}` and `{here}` (the recipe's directory).
    """

    port: int
    cpus: Sequence[int]
    model: str
    peers: Path
    penstock: Sequence[str]
    here: Path

    def texts(self) -> dict[str, str]:
        return {
            "port": str(self.port),
            "threads": str(len(self.cpus)),
            "cpus": ",".join(map(str, self.cpus)),
            "model": self.model,
            "peers": str(self.peers),
            "here": str(self.here),
        }

    def fill(self, word: str) -> str:
        """Replace the placeholders in a word.

        Raises:
            PenstockError: an unknown placeholder.
        """
        texts = self.texts()

        def replaced(match: re.Match[str]) -> str:
            if match[1] not in texts:
                known = ", ".join(f"{{{name}}}" for name in texts)
                raise PenstockError(
                    f"{word!r}: unknown placeholder {match[0]}; known: {known}, {{penstock}}"
                )
            return texts[match[1]]

        return _PLACEHOLDER.sub(replaced, word)

    def words(self, command: Sequence[str]) -> list[str]:
        """A command with placeholders replaced; `{penstock}` becomes words that run Penstock."""
        words: list[str] = []
        for word in command:
            words += self.penstock if word == "{penstock}" else [self.fill(word)]
        return words


def check_requirements(recipe: Recipe, values: Values) -> None:
    """Check that the required paths exist.

    Raises:
        PenstockError: one is missing.
    """
    missing = [path for path in map(values.fill, recipe.requires) if not Path(path).exists()]
    if missing:
        remedy = f"; run {values.fill(recipe.install)}" if recipe.install else ""
        raise PenstockError(f"server {recipe.name} needs {', '.join(missing)}{remedy}")


def find_recipe(name: str, directory: Path) -> Recipe:
    """The recipe `name` in a directory, else the built-in one.

    Raises:
        PenstockError: there is none, or it is invalid.
    """
    for place in (directory, BUILT_IN):
        path = place / f"{name}.toml"
        if path.is_file():
            return load_recipe(path)
    known = sorted({path.stem for place in (directory, BUILT_IN) for path in place.glob("*.toml")})
    raise PenstockError(f"no recipe {name!r} in {directory}; known: {', '.join(known)}")


def load_recipe(path: Path) -> Recipe:
    """The recipe in a file, named after the file.

    Raises:
        PenstockError: the file is unreadable, is not TOML, or has an invalid key or value.
    """
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PenstockError(f"recipe {path}: {error}") from error
    _check(path, table)
    here = path.resolve().parent
    return Recipe(name=path.stem, here=here, **table)


def _check(path: Path, table: Mapping[str, object]) -> None:
    if unknown := set(table) - set(_KINDS):
        raise PenstockError(
            f"recipe {path}: unknown keys {sorted(unknown)}; known: {', '.join(_KINDS)}"
        )
    for key, value in table.items():
        kind, expected = _KINDS[key]
        if not isinstance(value, kind) or not all(isinstance(part, str) for part in _parts(value)):
            raise PenstockError(f"recipe {path}: {key} is {value!r}, expected {expected}")
    if not table.get("command"):
        raise PenstockError(
            f"recipe {path}: no command; it is the list of words that starts the server"
        )


def _parts(value: object) -> Sequence[object]:
    if isinstance(value, list):
        return value
    return list(value.values()) if isinstance(value, dict) else ()
