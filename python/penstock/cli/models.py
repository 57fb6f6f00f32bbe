"""`penstock pull` and `penstock models`: models by name, on this machine and on hubs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from penstock.core.progress import size
from penstock.hub import ALIASES, pull
from penstock.hub.shelf import Stored, remove, stored

NAMES = "an alias (`penstock models aliases`), org/repo[:QUANT], or the address of a GGUF file"


def add_pull_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Download a model, or what has changed of it, and verify it. An interrupted download is "
        "continued. The cache is shared with the hub's own tools (docs/models.md)."
    )
    parser.add_argument("model", metavar="MODEL", help=NAMES)
    parser.add_argument(
        "--revision", metavar="NAME", help="branch, tag or commit; default: the main branch"
    )
    parser.add_argument(
        "--local-dir",
        metavar="DIR",
        type=Path,
        help="download a repository to this directory instead of the cache",
    )
    parser.set_defaults(command=_pull)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "penstock models [-h] [--json] [ACT ...]"
    parser.description = "List the models on this machine and what they take."
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_list)
    acts = parser.add_subparsers(metavar="ACT", prog="penstock models")
    rm = acts.add_parser("rm", help="remove models from the caches")
    rm.description = (
        "Remove models from the caches. org/repo removes all that is there of the repository, "
        "org/repo:QUANT one quantisation."
    )
    rm.add_argument("names", metavar="NAME", nargs="+", help="as `penstock models` lists it")
    rm.set_defaults(command=_remove)
    aliases = acts.add_parser("aliases", help="list the known aliases")
    aliases.description = "List the aliases that serve, chat and pull take."
    aliases.add_argument("--json", action="store_true", help="print JSON")
    aliases.set_defaults(command=_aliases)


def _pull(parsed: argparse.Namespace) -> int:
    print(pull(parsed.model, parsed.revision, parsed.local_dir))
    return 0


def _list(parsed: argparse.Namespace) -> int:
    found = stored()
    if parsed.json:
        print(json.dumps([_row(one) for one in found], indent=2))
        return 0
    rows = [("NAME", "QUANT", "SIZE", "WHERE")]
    rows += [(_label(one), one.quantisation, size(one.size), _where(one)) for one in found]
    _table(rows if found else [])
    total = size(sum(one.size for one in found))
    what = "1 entry" if len(found) == 1 else f"{len(found)} entries"
    print(f"{what}, {total}. `penstock models aliases` lists models to pull.")
    return 0


def _remove(parsed: argparse.Namespace) -> int:
    for name in parsed.names:
        freed, where = remove(name)
        print(f"removed {name} from {where}: {size(freed)} freed")
    return 0


def _aliases(parsed: argparse.Namespace) -> int:
    here = {one.alias for one in stored() if not one.state}
    if parsed.json:
        rows = [
            {
                "alias": alias,
                "source": known.source,
                "bytes": known.size,
                "licence": known.licence,
                "about": known.about,
                "here": alias in here,
            }
            for alias, known in ALIASES.items()
        ]
        print(json.dumps(rows, indent=2))
        return 0
    for alias, known in ALIASES.items():
        mark = ", on this machine" if alias in here else ""
        gigabytes = f"{known.size / 1e9:.1f}" if known.size > 1e9 else f"{known.size / 1e9:.2f}"
        print(f"{alias} (about {gigabytes} GB, {known.licence}{mark})")
        print(f"    {known.about}\n    {known.source}")
    return 0


def _row(one: Stored) -> dict[str, object]:
    return {
        "name": one.name,
        "alias": one.alias or None,
        "quantisation": one.quantisation or None,
        "bytes": one.size,
        "path": str(one.path),
        "state": one.state or "whole",
    }


def _label(one: Stored) -> str:
    return f"{one.alias} = {one.name}" if one.alias not in ("", one.name) else one.name


def _where(one: Stored) -> str:
    return f"{one.path} ({one.state})" if one.state else str(one.path)


def _table(rows: list[tuple[str, str, str, str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(3)] if rows else []
    for name, quantisation, taken, where in rows:
        print(f"{name:<{widths[0]}}  {quantisation:<{widths[1]}}  {taken:>{widths[2]}}  {where}")
