"""Sources on this machine: programs on PATH that print, hang, die or print half a line; files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock_ops.verify import sources
from penstock_ops.verify.checks import acs, gpu_health, nvidia
from penstock_ops.verify.checks.gpu_topology import PATH, parse
from penstock_ops.verify.checks.registry import CHECKS
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Absence
from penstock_ops.verify.finding import Status
from penstock_ops.verify.judging import findings_of, sources_of
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Command, Files, Growth, Links, collect, run_command
from tests.verify.node import GPU_XML, XML, healthy

RECORDED = (Path(__file__).parent / "recorded" / "topology-of-8-gpus.txt").read_text()


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory at the head of PATH; `program` writes a script there."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return directory


def program(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "absence", "said"),
    [
        ("exit 9", Absence.FAILED, "exit status 9"),
        ("echo no; echo failed to open NVML >&2; exit 1", Absence.FAILED, "failed to open NVML"),
        ("kill -SEGV $$", Absence.FAILED, "exit status -11"),
        # Longer than pytest's limit for a test: neither process is waited for.
        ("sleep 900 & sleep 900", Absence.TIMEOUT, "no end after 0.5 s"),
    ],
)
def test_a_program_that_fails_or_hangs(
    stub: Path, script: str, absence: Absence, said: str
) -> None:
    program(stub, "nvidia-smi", script)
    found = run_command(("nvidia-smi", "-q", "-x"), 0.5)
    assert (found.absence, said in found.detail) == (absence, True)


def test_a_program_that_is_missing_or_may_not_run(stub: Path) -> None:
    assert run_command(("penstock-no-such-tool",), 1).absence is Absence.MISSING
    (stub / "ibstat").write_text("")
    assert run_command(("ibstat",), 1).absence in (Absence.DENIED, Absence.MISSING)


def test_half_of_nvidia_smis_output_is_unknown_with_its_line(stub: Path, tmp_path: Path) -> None:
    text = XML.format(gpus=GPU_XML.format(bus="0000:19:00.0", number=0)).replace("gpus>2", "gpus>1")
    tree = healthy(tmp_path / "node")
    sources = [*gpu_health.ECC.sources]
    for output, statuses in ((text, {Status.PASS}), (text[: len(text) // 2], {Status.UNKNOWN})):
        (stub / "text").write_text(output)
        program(stub, "nvidia-smi", f"cat {stub}/text")
        found = findings_of([gpu_health.ECC], collect("n", sources, tree.root), Needs())
        assert {each.status for each in found} == statuses
    assert "line 21" in found[0].summary


def test_output_in_colours_is_read(stub: Path) -> None:
    program(stub, "lspci", r"printf '\033[4m0000:00:01.0 PCI bridge: x\033[0m\r\n'")
    found = run_command(("lspci",), 5)
    assert list(acs.parse(found.text)) == ["0000:00:01.0"]


def test_recorded_output_of_eight_gpus(tmp_path: Path) -> None:
    cells = parse(RECORDED, PATH)
    assert len(cells) == 81
    assert {cells[f"GPU{a}", f"GPU{b}"] for a in range(8) for b in range(8) if a != b} == {"NV18"}
    assert {cells[f"GPU{a}", "NIC0"] for a in range(8)} == {"SYS"}
    with pytest.raises(ParseError, match="line 9"):
        parse(RECORDED.replace("GPU7\tNV18\t", "GPU7\t"), PATH)


def test_files_of_a_pattern_with_unreadable_ones(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "value").write_text(f"{name}\n")
    (tmp_path / "c" / "value").mkdir(parents=True)
    found = collect("n", [Files("v", "/*/value"), Files("none", "/*/other")], tmp_path)
    assert found["v"].files == {"/a/value": "a\n", "/b/value": "b\n"}
    assert found["none"].absence is Absence.MISSING


def test_evidence_that_would_be_cut_is_none(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_text("x" * 101)
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.gid").write_text("x")
    program(stub, "lspci", "printf %101s x")
    monkeypatch.setattr(sources, "MOST_BYTES", 100)
    monkeypatch.setattr(sources, "MOST_FILES", 2)
    wanted = [Files("log", "/log"), Files("gids", "/*.gid"), Command("lspci", ("lspci",))]
    found = collect("n", wanted, tmp_path)
    assert {each.absence for each in found.evidence.values()} == {Absence.FAILED}
    assert "3 files, at most 2" in found["gids"].detail
    monkeypatch.setattr(sources, "MOST_BYTES", 101)
    assert found["log"].detail.endswith("File too large")
    assert len(collect("n", wanted[:1], tmp_path)["log"].files["/log"]) == 101


def test_a_pipe_without_a_writer_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found = collect("n", [Files("pipe", "/pipe")], tmp_path)
    assert found["pipe"].files in ({}, {"/pipe": ""})


def test_links_stay_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "inside")
    (tmp_path / "b").symlink_to("/etc")
    found = collect("n", [Links("links", "/[ab]")], tmp_path)
    assert found["links"].files == {"/a": "/inside"}


def test_counters_are_read_before_and_after_all_else(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("1\n")

    def run(_words: tuple[str, ...], _seconds: float) -> object:
        (tmp_path / "count").write_text("5\n")
        return None

    sources = [Command("act", ("act",)), Growth("count", "/count")]
    found = collect("n", sources, tmp_path, run)  # type: ignore[arg-type]
    assert found["count"].files == {"/count": "1\n"}
    assert found["count.end"].files == {"/count": "5\n"}
    assert float(found["count.end"].text) >= 0


def test_the_kernels_own_log_is_read_whole_or_denied() -> None:
    found = collect("n", [Files("kernel-log", "/dev/kmsg")])["kernel-log"]
    if found.is_present:
        assert found.files["/dev/kmsg"].count("\n") > 1
    else:
        assert found.absence in (Absence.DENIED, Absence.MISSING, Absence.FAILED)


def test_sources_that_share_a_name_are_the_same() -> None:
    needs = Needs(directories={"weights": "/a"}, hosts=("a",), stores=("s",))
    sources = sources_of(CHECKS, needs)
    assert len({each.name for each in sources}) == len(sources)


def test_an_entity_bomb_is_refused() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY b "xxxxxxxxxx">' + "".join(
        f'<!ENTITY b{n} "{f"&b{n - 1};" * 10 if n else "&b;" * 10}">' for n in range(9)
    )
    with pytest.raises(ParseError):
        nvidia.parse(f"{bomb}]><nvidia_smi_log>&b8;</nvidia_smi_log>")
