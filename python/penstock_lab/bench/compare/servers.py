"""Servers of a comparison, from `--server`, `--start` and `--args`."""

from __future__ import annotations

import shlex
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.core import InvalidValueError
from penstock_lab.bench.compare.recipe import Recipe, find_recipe, load_recipe
from penstock_lab.bench.target import base_url


@dataclass(frozen=True, slots=True)
class Entry:
    """A server of the comparison. Without a recipe, it already runs at `url`. With a recipe but no
    `url`, it is started on a free port.
    """

    name: str
    recipe: Recipe | None
    url: str | None = None


def parse_servers(
    servers: Sequence[str], starts: Sequence[str], arguments: Sequence[str], directory: Path
) -> list[Entry]:
    """Parse servers. Each of `servers` is NAME (a recipe in `directory` or built-in), NAME=RECIPE
    for one of another name, NAME=FILE.toml or NAME=URL.

    `starts` are NAME="COMMAND" for servers with a URL; `arguments` are NAME="WORDS" to append to a
    recipe's command.

    Raises:
        InvalidValueError: a duplicate server, or incompatible arguments.
        PenstockError: a recipe is missing or invalid.
    """
    start = _by_name("--start", starts)
    added = _by_name("--args", arguments)
    entries = [_entry(text, start, added, directory) for text in servers]
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise InvalidValueError(
                "--server", name, "a name that no other server has (NAME=RECIPE.toml)"
            )
    for flag, named in (("--start", start), ("--args", added)):
        if unknown := set(named) - set(names):
            raise InvalidValueError(flag, ", ".join(sorted(unknown)), "the name of a --server")
    return entries


def _by_name(flag: str, texts: Sequence[str]) -> dict[str, list[str]]:
    found = {}
    for text in texts:
        name, equals, words = text.partition("=")
        if not (name and equals):
            raise InvalidValueError(flag, text, 'NAME="WORDS"')
        try:
            found[name] = shlex.split(words)
        except ValueError as error:
            raise InvalidValueError(
                flag, text, f"words that a shell could read ({error})"
            ) from error
    return found


def _entry(
    text: str, starts: dict[str, list[str]], added: dict[str, list[str]], directory: Path
) -> Entry:
    name, equals, where = text.partition("=")
    if not name or (equals and not where):
        raise InvalidValueError("--server", text, "NAME, NAME=RECIPE or NAME=http://HOST:PORT")
    if where.startswith(("http://", "https://")):
        return _at_url(name, where, starts.get(name), added.get(name))
    if name in starts:
        raise InvalidValueError("--start", name, "a server that is given as NAME=http://HOST:PORT")
    is_file = where.endswith(".toml")
    recipe = load_recipe(Path(where)) if is_file else find_recipe(where or name, directory)
    return Entry(name, replace(recipe, name=name, command=[*recipe.command, *added.get(name, ())]))


def _at_url(name: str, url: str, start: list[str] | None, added: list[str] | None) -> Entry:
    if start is None and added is not None:
        raise InvalidValueError("--args", name, "a server that this command starts")
    base = base_url(url)
    if start is None:
        return Entry(name, None, base)
    if urllib.parse.urlsplit(base).port is None:
        raise InvalidValueError(
            "--server", f"{name}={url}", "a URL with a port, for --start to listen on"
        )
    return Entry(name, Recipe(name=name, command=[*start, *(added or ())]), base)
