"""Prints the notices for the third-party crates in the wheels: names, versions, licences, texts.

    python scripts/third_party.py > THIRD-PARTY-NOTICES.md

Run it after a change of Cargo.lock: a test compares the list of crates. Licence texts come from the
crates' sources, which cargo downloads if necessary.
"""

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WHEEL = "penstock-native"
TEXTS = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.IGNORECASE)
COPYRIGHT = re.compile(r"(\(c\) )?copyright (\(|©|19|20)", re.IGNORECASE)
HEAD = """# Third-party notices

Penstock's wheels contain, or are compiled with, the following crates.
`python scripts/third_party.py` generates this file. The text of Apache-2.0 is in
[LICENSE](LICENSE); the other licence texts follow the table, with the crates that use them.
"""
# Platforms of the wheels that the release workflow builds.
PLATFORMS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")

Package = dict[str, Any]


def packages() -> list[Package]:
    """Normal dependencies of the wheels from outside the workspace, sorted by name and version."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    command += [f"--filter-platform={platform}" for platform in PLATFORMS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    metadata = json.loads(done.stdout)
    by_id = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    pending = [id_ for id_, package in by_id.items() if package["name"] == WHEEL]
    reached: set[str] = set()
    while pending:
        id_ = pending.pop()
        if id_ not in reached:
            reached.add(id_)
            pending += [edge["pkg"] for edge in nodes[id_]["deps"] if is_linked(edge)]
    linked = [by_id[id_] for id_ in reached if by_id[id_]["source"]]
    return sorted(linked, key=lambda package: (package["name"], package["version"]))


def is_linked(edge: dict[str, Any]) -> bool:
    """Whether a dependency is a normal one. cargo names only the kinds `dev` and `build`."""
    return any(not kind["kind"] for kind in edge["dep_kinds"])


def rows(linked: list[Package]) -> list[str]:
    """One table row for each crate."""
    return [f"| {one['name']} | {one['version']} | {licence(one)} |" for one in linked]


def licence(package: Package) -> str:
    """A crate's licence as an SPDX expression. Old manifests use a slash for OR."""
    return " OR ".join(re.split(r"\s*/\s*", package["license"]))


def texts(package: Package) -> Iterator[tuple[str, str]]:
    """(copyright lines, text) of each licence file of a crate, without the Apache License."""
    directory = Path(package["manifest_path"]).parent
    for path in sorted(directory.iterdir()):
        if path.is_file() and TEXTS.match(path.name):
            text = path.read_text(errors="replace")
            if "Apache License" not in text[:400]:
                lines = [" ".join(line.split()) for line in text.strip().splitlines()]
                owners = [line for line in lines if COPYRIGHT.match(line)]
                rest = "\n".join(line for line in lines if not COPYRIGHT.match(line))
                paragraphs = (" ".join(part.split()) for part in rest.split("\n\n"))
                yield "; ".join(owners), "\n\n".join(part for part in paragraphs if part)


def main() -> None:
    linked = packages()
    out = [HEAD, "| Crate | Version | Licence |", "|---|---|---|", *rows(linked)]
    users: dict[str, dict[str, list[str]]] = {}
    for package in linked:
        for owners, text in texts(package):
            users.setdefault(text, {}).setdefault(owners, []).append(package["name"])
    for text, crates in users.items():
        first = next(iter(crates.values()))[0]
        out += ["", f"## {first}" if len(crates) == 1 else f"## {first} and others", ""]
        for owners, names in crates.items():
            row = f"- {', '.join(dict.fromkeys(names))}" + (f": {owners}" if owners else "")
            out += textwrap.wrap(row, 118, subsequent_indent="  ", break_on_hyphens=False)
        paragraphs = [textwrap.fill(part, 118) for part in text.split("\n\n")]
        out += ["", "```text", "\n\n".join(paragraphs), "```"]
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
