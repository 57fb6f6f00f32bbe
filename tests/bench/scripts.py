"""Imports scripts of benchmarks/ as Python does when it runs one: their directory is first on the
path.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@contextmanager
def imported(*names: str) -> Iterator[list[ModuleType]]:
    """Modules by name. Afterwards no module of the directory is left in sys.modules."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in set(sys.modules) - before:
            if BENCHMARKS in Path(getattr(sys.modules[name], "__file__", None) or "").parents:
                del sys.modules[name]
