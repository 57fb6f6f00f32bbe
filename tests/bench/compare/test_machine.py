"""What a result says of its machine."""

from functools import partial
from pathlib import Path

import pytest

from penstock.config import machine as config
from penstock_lab.bench.compare import machine

CPUINFO = """\
processor\t: 0
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
flags\t\t: fpu avx2 avx512f avx512_vnni

processor\t: 1
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
flags\t\t: fpu avx2 avx512f avx512_vnni
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "READ_BYTES", 1 << 16)


def cpuinfo(monkeypatch: pytest.MonkeyPatch, root: Path, text: str) -> None:
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(text)
    monkeypatch.setattr(machine, "cpuinfo", partial(config.cpuinfo, root=root))


def test_processors_of_one_name_differ_by_family_model_and_instructions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cpuinfo(monkeypatch, tmp_path, CPUINFO)
    expected = "2 x AMD EPYC (family 25 model 17; AVX2 AVX-512 VNNI)"
    assert machine.processor() == expected


def test_bandwidth_is_that_of_the_processors_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "cpu_count", lambda: 2)
    monkeypatch.setattr(machine, "memory_bandwidth", lambda threads: threads * 20e9)
    assert machine.machine()["memory"] == "40 GB/s (threads: 2)"


@pytest.mark.usefixtures("small")
def test_a_system_without_cpuinfo_is_named_by_its_architecture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "cpuinfo", partial(config.cpuinfo, root=tmp_path))
    monkeypatch.setattr(machine.platform, "machine", lambda: "arm64")
    told = machine.machine()
    assert told["processor"] == "arm64"
    assert told["memory"].endswith(f"GB/s (threads: {config.cpu_count()})")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("threads", [1, 3])
def test_each_thread_reads_equal_buffers_to_their_ends(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    made = []
    monkeypatch.setattr(
        machine, "_filled", lambda size, fill=machine._filled: made.append(size) or fill(size)
    )
    assert machine.memory_bandwidth(threads) > 0
    # two for each thread, all together what is said to be read
    assert made == [(1 << 16) // 2 // threads] * 2 * threads


def test_little_memory_is_not_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: 1 << 16)
    sizes: list[int] = []
    monkeypatch.setattr(
        machine, "_filled", lambda size, fill=machine._filled: sizes.append(size) or fill(size)
    )
    machine.memory_bandwidth(2)
    assert sum(sizes) == 1 << 14
