"""What the code uses of torch and Triton (`names.txt`) is there, in whatever versions these are."""

from pathlib import Path
from pkgutil import resolve_name

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")


def test_all_names_of_torch_and_triton_are_there() -> None:
    names = Path(__file__).with_name("names.txt").read_text().split()
    assert [name for name in names if not is_there(name)] == [], torch.__version__


def is_there(name: str) -> bool:
    try:
        resolve_name(name)
    except (AttributeError, ImportError):
        return False
    return True
