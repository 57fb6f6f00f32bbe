"""Finds a Penstock with the compiled extension, as users run it: in a wheel, in this source tree if
the extension is built there, or installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "python"
LOOK = "import penstock, penstock._native, os; print(os.path.dirname(penstock.__file__))"
ABSENT = (
    "no wheel was given (--wheel), and neither this source tree nor what is installed has the "
    "compiled extension"
)


@dataclass(frozen=True)
class Product:
    """A Penstock installation that can serve."""

    origin: str
    path: str
    """PYTHONPATH for processes of this installation."""
    package: Path

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-P", "-m", "penstock"]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of this process without variables that begin with PENSTOCK_: a run sets
        its own flags.
        """
        own = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
        return {**own, "PYTHONPATH": self.path}

    def is_this_tree(self) -> bool:
        """Whether the installation has the same Python files as this source tree."""
        names = ("penstock", "penstock_lab", "penstock_ops")
        return all(_texts(self.package.parent / name) == _texts(SOURCES / name) for name in names)


def unpack(wheel: Path, directory: Path) -> None:
    """Unpack the wheel as pip would install it, but without dependencies."""
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(directory)


def find(wheel: Path | None) -> Product | None:
    """The first of the three places that has the compiled extension; None if none has. `wheel` is
    the directory of an unpacked one.
    """
    there = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    given = [each for each in there if each and Path(each).resolve() not in (ROOT, SOURCES)]
    places = {"the wheel": [str(wheel), *given]} if wheel else {}
    if any((SOURCES / "penstock").glob("_native.*")):
        places["this source tree"] = [str(SOURCES), *given]
    places["what is installed"] = given
    for origin, path in places.items():
        joined = os.pathsep.join(path)
        done = subprocess.run(
            [sys.executable, "-P", "-c", LOOK],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": joined},
        )
        if done.returncode == 0:
            return Product(origin, joined, Path(done.stdout.strip()))
        if origin == "the wheel":
            raise RuntimeError(f"the wheel cannot be imported: {done.stderr[-300:]}")
    return None


def _texts(package: Path) -> dict[str, bytes]:
    return {str(path.relative_to(package)): path.read_bytes() for path in package.rglob("*.py")}
