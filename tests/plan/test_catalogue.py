"""Models by the name of the catalogue, and what wins over it."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.core import InvalidValueError, PenstockError
from penstock.model.sizing import whole
from penstock_ops.plan import catalogue
from penstock_ops.plan.catalogue import FILE, Entry, entries, find
from penstock_ops.plan.hardware import full_name, names, parse_target
from penstock_ops.plan.subject import of_catalogue, read_subject

NAME = "Qwen/Qwen3-8B"
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and a working directory with no models."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def smaller() -> str:
    """A config.json that is not the catalogue's."""
    return json.dumps({**entries()[NAME].config, "num_hidden_layers": 2})


def copied(cache: Path, revision: str = REVISION) -> Path:
    """A copy in the hub's cache, as its tools write it."""
    repository = cache / "models--Qwen--Qwen3-8B"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    made = repository / "snapshots" / REVISION
    made.mkdir(parents=True)
    (made / "config.json").write_text(smaller())
    return made


def test_the_file_is_small_sorted_and_has_its_sources() -> None:
    assert FILE.stat().st_size < 150_000
    rows = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    found = [row["model"] for row in rows]
    assert found == sorted(set(found), key=str.lower)
    assert len(found) >= 100
    for row in rows:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", row["model"])
        assert row["source"]
        assert date.fromisoformat(row["date"])
    shorts = {entry.short.lower() for entry in entries().values()}
    assert len(shorts) == len(rows), "every name after the slash is enough"


@pytest.mark.parametrize("name", entries())
def test_every_model_is_sized_from_its_keys_alone(name: str) -> None:
    subject = of_catalogue(entries()[name])
    assert subject.path is None
    assert subject.file_bytes is None
    assert "is missing" not in subject.refused, "a key was left out that the family reads"
    assert f"shape of {name} from the catalogue" in subject.notes[0]
    assert entries()[name].date in subject.notes[0]


@pytest.mark.parametrize("typed", [NAME, "Qwen3-8B", "qwen/qwen3-8b", "QWEN3-8B"])
def test_a_model_by_its_name_in_any_case(typed: str) -> None:
    subject = read_subject(typed)
    assert subject.name == "Qwen3-8B"
    assert subject == of_catalogue(entries()[NAME])


def test_a_directory_wins(tmp_path: Path) -> None:
    directory = tmp_path / "cwd" / NAME
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(smaller())
    assert len(read_subject(NAME).spec.layers) == 2
    assert len(read_subject("Qwen3-8B").spec.layers) == 36, "no such directory here"


@pytest.mark.parametrize("typed", [NAME, "qwen3-8b"])
def test_a_copy_of_the_hub_wins(cache: Path, typed: str) -> None:
    copied(cache)
    subject = read_subject(typed)
    assert len(subject.spec.layers) == 2
    assert subject.name == "Qwen3-8B"
    assert REVISION in subject.notes[0]


@pytest.mark.parametrize("revision", ["", "../../..", "main", "f" * 40, "\x00", REVISION[:-1]])
def test_a_reference_to_no_copy_is_none(cache: Path, revision: str) -> None:
    copied(cache, revision)
    assert len(read_subject(NAME).spec.layers) == 36


def test_a_copy_without_config_is_none(cache: Path) -> None:
    (copied(cache) / "config.json").unlink()
    assert len(read_subject(NAME).spec.layers) == 36


def test_weights_of_a_file_beside_config_are_read() -> None:
    """The bytes are those of the whole files."""
    subject = read_subject("DeepSeek-V3.1-NVFP4")
    assert (subject.weights.name, subject.kv) == ("nvfp4", "fp8")
    assert "hf_quant_config.json: quantization: ModelOpt (4-bit floats" in subject.refused
    assert str(FILE.parent) not in subject.refused
    # Of experts, shared experts, dense layers and outputs of attention: a scale of the scales and
    # one of the inputs.
    matrices = 58 * 256 * 3 + 58 * 3 + 3 * 3 + 61
    assert subject.weights.bytes(whole(subject.spec)) == 386_379_754_496 + 8 * matrices


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "MODEL is '', expected a path, an alias, or a name of the catalogue"),
        ("  ", "MODEL is '  '"),
        ("/", "no config.json"),
        ("//", "no config.json"),
        ("..", "no config.json"),
        ("../../../Qwen3-8B", "did you mean Qwen3-8B"),
        ("/Qwen3-8B", "no such file or directory"),
        ("Qwen/", "no such file or directory"),
        ("Qwen/../Qwen3-8B", "no such file or directory"),
        ("x" * 100_000, "no such file or directory"),
        ("x/" * 5_000, "no such file or directory"),
        ("Qwen3-8B\n", "no such file or directory"),
        ("Qwen3-8B\0", "no such file or directory"),
        ("Qwen3-9B", "did you mean Qwen3-8B"),
        ("Llama-3.1-8B-Instruct", "did you mean Meta-Llama-3.1-8B?"),
        ("mixtral", "did you mean Mixtral-8x22B-v0.1 or Mixtral-8x7B-v0.1?"),
        ("zzzzzz", "nor is it in `penstock plan --list-models`"),
    ],
)
def test_names_that_are_none(tmp_path: Path, name: str, said: str) -> None:
    empty = tmp_path / "cwd"
    assert not any(empty.iterdir())
    with pytest.raises(PenstockError, match=re.escape(said)) as refused:
        read_subject(name)
    assert len(str(refused.value)) < 1_000


def test_a_name_of_two_publishers_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    two = {name: Entry(name, "s", "2026-01-01", {}, {}) for name in ("a/M-1", "b/m-1")}
    monkeypatch.setattr(catalogue, "entries", lambda: two)
    assert find("B/M-1") is two["b/m-1"]
    with pytest.raises(InvalidValueError, match="a publisher and a name: a/M-1, b/m-1"):
        find("M-1")


def test_a_plan_by_names_says_where_the_shape_is_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "DeepSeek-R1", "--on", "h100:16"]) == 0
    printed = capsys.readouterr().out
    assert "671.03 billion weights (36.63 active), fp8" in printed
    assert "note: shape of deepseek-ai/DeepSeek-R1 from the catalogue (source: " in printed
    assert "note: h100 is h100-sxm-80gb" in printed
    assert "16 x NVIDIA H100 SXM" in printed


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--list-models"])
    assert not ended.value.code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(entries()) + 1
    row = next(line for line in lines if line.startswith("deepseek-ai/DeepSeek-R1 "))
    sizes = "671.03 36.63 fp8 626.92 GiB 68.6 KiB 163,840 DeepseekV3ForCausalLM"
    assert " ".join(row.split()[1:]) == sizes
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--list-hardware"])
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in (*names("accelerators"), *names("nodes")))
    assert "h100-sxm-80gb       80.00 GiB          8  NVIDIA H100 SXM" in printed


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("h100", "h100-sxm-80gb"),
        ("H100", "h100-sxm-80gb"),
        ("h100-pcie", "h100-pcie-80gb"),
        ("h20", "h20-96gb"),
        ("l4", "l4-24gb"),
        ("rtx-pro-6000", "rtx-pro-6000-96gb"),
        ("aws-p5", "aws-p5-48xlarge"),
        ("MI300X-192GB", "mi300x-192gb"),
        *((name, name) for name in ("h100-pcie-80gb", "gcp-a3-high")),
    ],
)
def test_beginnings_of_hardware(word: str, name: str) -> None:
    assert full_name(word) == name
    target = parse_target(f"{word}:2@3.5")
    assert (target.name, target.on, target.word) == (name, f"{name}:2", word)
    assert target.price == 3.5


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("l40", "of those that begin so l40s-48gb"),
        ("h", "of those that begin so h100-pcie-80gb, h100-sxm-80gb, h20-96gb, h200-sxm-141gb"),
        ("gcp", "of those that begin so gcp-a3-high, gcp-a3-mega"),
        ("gcp-a3", "of those that begin so gcp-a3-high, gcp-a3-mega, gcp-a3-ultra"),
        ("h1000", "one of here, a10-24gb"),
        ("h1000", "; did you mean h100?"),
        ("h100_sxm_80gb", "; did you mean h100-sxm-80gb?"),
        ("aws-p5en-48large", "; did you mean aws-p5en-48xlarge?"),
        ("", "one of here"),
        ("../accelerators/h100-sxm-80gb", "one of here"),
        ("x" * 100_000, "one of here"),
    ],
)
def test_hardware_that_is_none(word: str, said: str) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(said)) as refused:
        parse_target(word)
    assert len(str(refused.value)) < 1_000


def test_an_engine_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "Qwen3-8B", "--engine", "vlm"])
    assert "did you mean vllm?" in capsys.readouterr().err
