"""`penstock model show` on tiny checkpoints, a published config.json alone, and a GGUF file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock_ops.plan.show import spans
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
    text = shown(capsys, str(directory))
    assert "parameters: 30.53 billion" in text
    assert text.endswith("unsupported: no backend runs NovelForCausalLM yet\n")
    assert "rope" not in text
    found = report(capsys, str(directory))
    assert (found["supported"], found["unsupported"]) == (
        False,
        "no backend runs NovelForCausalLM yet",
    )


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
