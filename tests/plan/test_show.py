"""`penstock model show` on tiny checkpoints, a published config.json alone, and a GGUF file."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock_ops.plan.show import spans
from tests.model.test_lfm2 import CONFIG as LFM2
from tests.model.test_published import READ, ROWS

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")
QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
}
TINY = Path(__file__).parents[1] / "fixtures/tiny"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B))
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["model", "show", *arguments]) == 0
    return capsys.readouterr().out


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown(capsys, *arguments, "--json"))
    return found


def test_config_json_is_enough(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    text = shown(capsys, str(directory))
    assert "layers 0-47: attention of 32 query and 4 KV heads of 128" in text
    assert "128 experts of 768, 8 for a token, by softmax" in text
    assert "parameters: 30.53 billion, 3.04 billion read for a token" in text
    assert "weights: 56.87 GiB, most of them bf16" in text
    assert "KV of layers 0-47: 96.00 KiB a token" in text
    assert "unsupported" not in text


def test_ranks_hold_all_weights_together(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    found = report(capsys, str(directory), "-tp", "2", "-pp", "2", "--enable-expert-parallel")
    assert found["kv_groups"] == [
        {
            "layers": list(range(48)),
            "bytes_per_token": 96 * 1024,
            "window": None,
            "chunked": False,
        }
    ]
    ranks = found["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    experts = [rank["weights_parts"]["experts"] for rank in ranks]
    assert sum(experts) == found["weights_parts"]["experts"]
    kv = [group["bytes_per_token"] for rank in ranks for group in rank["kv_groups"]]
    assert sum(kv) == 96 * 1024


def test_groups_with_a_window_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, str(TINY / "gptoss"))
    assert "KV of layer 0: 128 B a token, in a window of 12: at most 1.50 KiB a sequence" in text
    assert "KV of layer 1: 128 B a token\n" in text


def test_a_gguf_file(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, str(TINY / "llama4moe.gguf"))
    assert (found["family"], found["supported"]) == ("llama4", True)
    kinds = found["spec"]["kinds"]
    assert any(kind["feed_forward"].get("experts") == 3 for kind in kinds)
    stored = report(capsys, str(TINY / "llama4moe"))
    assert found["parameters"] == stored["parameters"] == numbers(TINY / "llama4moe")


def numbers(directory: Path) -> int:
    with (directory / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    shapes = (entry["shape"] for name, entry in header.items() if name != "__metadata__")
    return sum(math.prod(shape) for shape in shapes)


def test_what_is_not_supported_is_sized_and_said(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    config = {**QWEN3_30B, "architectures": ["NovelForCausalLM"]}
    (directory / "config.json").write_text(json.dumps(config))
    text, _ = refused(capsys, str(directory))
    assert "parameters: 30.53 billion" in text
    assert text.endswith("unsupported: no backend runs NovelForCausalLM yet\n")
    assert "rope" not in text
    found = json.loads(refused(capsys, str(directory), "--json")[0])
    assert (found["supported"], found["unsupported"]) == (
        False,
        "no backend runs NovelForCausalLM yet",
    )


def test_layers_with_a_state_have_no_kv(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LFM2))
    text, _ = refused(capsys, str(tmp_path))
    assert "short convolution of 2048 channels over 3 tokens;" in text
    assert "parameters: 1.17 billion" in text
    assert "KV of layers 2, 5, 8 and so on (6): 12.00 KiB a token\n" in text
    assert "state: 160.00 KiB a sequence of any length\n" in text
    assert text.endswith("unsupported: no backend computes short convolutions yet\n")
    found = json.loads(refused(capsys, str(tmp_path), "-tp", "4", "--json")[0])
    assert [rank["state_bytes_per_sequence"] for rank in found["ranks"]] == [40 * 1024] * 4


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    assert main(["model", "show", *arguments]) == 1
    written = capsys.readouterr()
    return written.out, written.err


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    shutil.copytree(TINY / "llama3", tmp_path / "tiny")
    return tmp_path / "tiny"


def change(directory: Path, **keys: object) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))


def test_a_quantization_that_is_refused(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    change(tiny, quantization_config={"quant_method": "gptq", "bits": 3})
    text, _ = refused(capsys, str(tiny))
    held = numbers(tiny)
    assert f"\ntensors of F32: 20, {held:,} numbers, {4 * held / 1024:.2f} KiB\n" in text
    assert "unsupported: no backend runs it yet: " in text
    assert (
        "quantization_config: GPTQ (3-bit integers, a scale for a row, symmetric) is not " in text
    )
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    form = {"format": "mxfp4-pack-quantized", "config_groups": groups}
    change(tiny, quantization_config={"quant_method": "compressed-tensors", **form})
    text, _ = refused(capsys, str(tiny))
    assert "  mxfp4: compressed-tensors, 4-bit floats, a scale for 32 inputs\n" in text
    assert "on a CPU: " not in text


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"architectures": ["NovelForCausalLM"], "hidden_size": None}, "hidden_size is missing"),
        (
            {"quantization_config": {"quant_method": "novel"}},
            "quantization_config.quant_method = 'novel'",
        ),
    ],
)
def test_what_can_be_read_of_a_model_without_sizes(
    capsys: pytest.CaptureFixture[str], tiny: Path, keys: dict[str, object], fault: str
) -> None:
    change(tiny, **keys)
    text, error = refused(capsys, str(tiny))
    assert fault in error
    assert '\n  model_type: "llama"\n' in text
    assert text.endswith(f"\ntensors of F32: 20, {numbers(tiny):,} numbers, 96.62 KiB\n")
    found = json.loads(refused(capsys, str(tiny), "--json")[0])
    assert (found["supported"], found["fields"]["vocab_size"]) == (False, 256)
    size = 4 * numbers(tiny)
    assert found["tensors"] == {"F32": {"tensors": 20, "numbers": numbers(tiny), "bytes": size}}
    (tiny / "config.json").write_text("{")
    assert refused(capsys, str(tiny))[0].startswith("tensors of F32: 20,")
    (tiny / "model.safetensors").write_bytes(b"\xff" * 9)
    text, error = refused(capsys, str(tiny))
    assert (text, "not valid JSON" in error) == ("", True)


def test_a_gguf_file_of_a_family_that_is_not_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "novel.gguf"
    file.write_bytes((TINY / "qwen3.gguf").read_bytes().replace(b"qwen3", b"novel"))
    text, error = refused(capsys, str(file))
    assert '  general.architecture: "novel"\n  novel.attention.head_count: 4\n' in text
    # Per layer, 7 matrices of F16 and 4 norms of F32; besides them, embedding, head and a norm.
    assert "\ntensors of F16: 16, " in text
    assert "\ntensors of F32: 9, " in text
    assert "general.architecture = 'novel' is not supported" in error


def test_keys_that_are_not_read_are_named(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 64, "rope_theta": 10000.0}
    unread = ["novel_key", "red\x1b[31m", "rope_parameters.novel"]
    change(tiny, novel_key=3, **{"red\x1b[31m": 1}, rope_parameters={**rope, "novel": 1})
    found = report(capsys, str(tiny))["unread_keys"]
    assert sorted(set(found) & set(unread)) == unread
    read = {"hidden_size", "rope_parameters", "rope_parameters.factor", "eos_token_id", "head_dim"}
    assert not read & set(found)
    last = shown(capsys, str(tiny)).splitlines()[-1]
    assert last.startswith("not read from config.json: ")
    assert '"red\\u001b[31m"' in last
    assert "\x1b" not in last


def test_quantised_matrices_are_listed_by_scheme(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    settings = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "sym": False,
        "dynamic": {"-:.*layers.[0-7].mlp": {}, ".*k_proj": {"bits": 8, "group_size": 64}},
    }
    config = {**QWEN3_30B, "quantization_config": settings}
    (directory / "config.json").write_text(json.dumps(config))
    text = shown(capsys, str(directory))
    assert ": qwen3moe; 48 layers, " in text
    assert (
        "  int4/128: GPTQ, 4-bit integers, a scale for 128 inputs, zero points\n"
        "    attention q v o, experts gate up down (layers 8-47)\n"
        "    on a CPU: bf16, rounded; exact in f32 with --quantization none\n"
        "  int8/64: GPTQ, 8-bit integers, a scale for 64 inputs, zero points\n"
        "    attention k\n"
    ) in text
    found = report(capsys, str(directory))
    assert [(row["name"], row["bits"], row["group_size"], row["zero_points"])
            for row in found["quantization"]] == [
        ("int4/128", 4, 128, True), ("int8/64", 8, 64, True)
    ]  # fmt: skip
    assert (found["family"], found["supported"]) == ("qwen3moe", True)


@pytest.mark.parametrize("name", READ)
def test_every_published_model_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(ROWS[name]["config"]))
    found = report(capsys, str(tmp_path), "-tp", "2", "-pp", "2", "--enable-expert-parallel")
    assert (found["supported"], len(found["ranks"])) == (True, 4)
    experts = [rank["weights_parts"].get("experts", 0) for rank in found["ranks"]]
    assert sum(experts) == found["weights_parts"].get("experts", 0)


def test_faults_are_named(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    assert main(["model", "show", str(directory), "-tp", "64"]) == 2
    assert "--tensor-parallel-size" in capsys.readouterr().err
    (directory / "config.json").unlink()
    assert main(["model", "show", str(directory)]) == 1
    assert "no config.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ([3], "layer 3"),
        ([0, 1, 2], "layers 0-2"),
        ([0, 2, 3, 7], "layers 0, 2-3, 7"),
        (list(range(0, 24, 2)), "layers 0, 2, 4 and so on (12)"),
    ],
)
def test_layers_as_ranges(layers: list[int], text: str) -> None:
    assert spans(layers) == text
