"""Writes the notices of the crates that the wheel has in it: names, versions, licences, texts.

    python scripts/third_party.py > THIRD-PARTY-NOTICES.md

Run it after a change of Cargo.lock; a test compares its list. Texts come from the sources that
cargo has downloaded.
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
APACHE = "Apache-2.0"
HEAD = """# Third-party notices

Penstock's wheels contain the following crates, compiled. `python scripts/third_party.py` writes
this file. The licence that applies is one that the column allows; its text follows, once for all
crates that have the same one.
"""

Package = dict[str, Any]


def packages() -> list[Package]:
    """The crates that are linked into the wheel, by name and version, without the workspace's."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline"]
    command += ["--filter-platform", "x86_64-unknown-linux-gnu"]
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
    return any(kind["kind"] is None for kind in edge["dep_kinds"])


def rows(linked: list[Package]) -> list[str]:
    """A row of the table for each crate."""
    return [f"| {one['name']} | {one['version']} | {licence(one)} |" for one in linked]


def licence(package: Package) -> str:
    """The SPDX expression, in the form that has no slash."""
    return " OR ".join(re.split(r"\s*/\s*", package["license"]))


def texts(package: Package) -> Iterator[tuple[str, str]]:
    """(copyright lines, text) of each licence file of a crate. Apache's is the repository's own."""
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
    out += ["", f"The text of {APACHE} is in [LICENSE](LICENSE)."]
    for text, crates in users.items():
        out += ["", "## " + next(iter(crates.values()))[0] + " and others", ""]
        for owners, names in crates.items():
            out += [*textwrap.wrap(f"- {', '.join(dict.fromkeys(names))}: {owners}", 118)]
        paragraphs = [textwrap.fill(part, 118) for part in text.split("\n\n")]
        out += ["", "```text", "\n\n".join(paragraphs), "```"]
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
