"""The ceilings of benchmarks/gpu: what a memory can do."""

from __future__ import annotations

import ctypes
import json
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from benchmarks.gpu import bandwidth, machine  # noqa: E402
from benchmarks.gpu.items import Results  # noqa: E402
from benchmarks.gpu.timing import Timing  # noqa: E402


class Driver:
    """CUDA's, as far as attributes go."""

    def __init__(self, attributes: dict[int, int], fails: str = "") -> None:
        self._attributes, self._fails = attributes, fails

    def cuInit(self, _flags: int) -> int:  # noqa: N802 - CUDA's name
        return 100 * (self._fails == "init")

    def cuDeviceGet(self, _handle: Any, _device: int) -> int:  # noqa: N802 - CUDA's name
        return 0

    def cuDeviceGetAttribute(self, into: Any, attribute: int, _device: Any) -> int:  # noqa: N802
        value = ctypes.cast(into, ctypes.POINTER(ctypes.c_int))
        value[0] = self._attributes.get(attribute, 0)
        return 0


def test_the_datasheet_is_clock_and_width_as_the_driver_has_them() -> None:
    assert bandwidth.datasheet(Driver({36: 2_619_000, 37: 5120})) == pytest.approx(
        3.352e12, rel=1e-3
    )
    assert bandwidth.datasheet(Driver({36: 2_619_000})) is None
    assert bandwidth.datasheet(Driver({}, fails="init")) is None


@pytest.mark.parametrize(("copy", "read"), [(2.0, 3.0), (3.0, 2.0)])
def test_the_ceiling_is_the_larger_of_copy_and_read(
    copy: float, read: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "machine.json"
    results, timing = Results(out, time.monotonic() + 60), Timing(dry=True)
    size = 1 << 20
    seconds = iter([2 * size / copy, size / read, 1.0])
    monkeypatch.setattr(timing, "of", lambda *_, **__: next(seconds))
    machine.measure(results, timing)
    found = json.loads(out.read_text())
    assert found["copy_bytes_per_s"] == pytest.approx(copy)
    assert found["read_bytes_per_s"] == pytest.approx(read)
    assert found["datasheet_bytes_per_s"] == "unknown"
    assert machine.ceilings(tmp_path / "other.json").bandwidth == pytest.approx(3.0)
