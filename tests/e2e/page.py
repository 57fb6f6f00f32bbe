"""The YAML blocks of docs/gateway.md, for tests that run them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
PLACE = re.compile(r"http://10\.0\.0\.(\d+):8000")


def examples() -> dict[str, str]:
    """YAML by the heading of its section; further ones of a section are `HEADING 2` and so on."""
    found: dict[str, str] = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        heading = section.split("\n")[0]
        for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", section, re.S), start=1):
            found[heading if number == 1 else f"{heading} {number}"] = text
    return found


def example(name: str) -> str:
    return examples()[name]


def placed(text: str, urls: Sequence[str]) -> str:
    """An example before these replicas: `http://10.0.0.1:8000` is the first one."""
    return PLACE.sub(lambda place: urls[int(place[1]) - 1], text)


def requested(heading: str) -> tuple[str, dict[str, str], str]:
    """Path, headers and body of the `curl` of a section."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (command,) = re.findall(r"^curl .*?(?=\n```)", section, re.M | re.S)
    words = shlex.split(command.replace("\\\n", " "))
    given = list(pairwise(words))
    headers = [word.split(": ", 1) for flag, word in given if flag == "-H"]
    (body,) = [word for flag, word in given if flag == "-d"]
    path = words[1].removeprefix("http://HOST:8080")
    return path, dict(headers), body
