"""Resident memory of a process that has loaded a model, beside what was planned for it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.sizing import whole
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import Load, engine
from penstock_ops.plan.here import here
from penstock_ops.plan.subject import Subject, read_subject
from penstock_ops.plan.weights import as_packed
from tests.limits import HANG

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")

MIXTURE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 4096,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
VALUE = b"\x00\x3c"
"""Each weight, in bfloat16."""

LOADING = """
import sys
from pathlib import Path
from penstock.backends import load_backend
from penstock.config import resolve, Raw
from penstock.model import load_model
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if "VmRSS" in line)
import penstock._native
before = resident()
config = resolve({"threads": Raw("test", ("1",))}, sys.argv[1], "m").engine
backend = load_backend(config, load_model(Path(sys.argv[1])))
print(before * 1024, resident() * 1024, backend.facts.weights_bytes)
"""


def shapes() -> dict[str, tuple[int, ...]]:
    """Tensors of MIXTURE by name."""
    hidden, vocab, width = 512, 32000, 256
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(12):
        at = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}{norm}.weight"] = (hidden,)
        for role, rows in (("q", 512), ("k", 128), ("v", 128)):
            found[f"{at}self_attn.{role}_proj.weight"] = (rows, hidden)
        found[f"{at}self_attn.o_proj.weight"] = (hidden, 512)
        for role in ("q", "k"):
            found[f"{at}self_attn.{role}_norm.weight"] = (64,)
        found[f"{at}mlp.gate.weight"] = (16, hidden)
        for expert in range(16):
            for role, shape in (("gate", (width, hidden)), ("up", (width, hidden))):
                found[f"{at}mlp.experts.{expert}.{role}_proj.weight"] = shape
            found[f"{at}mlp.experts.{expert}.down_proj.weight"] = (hidden, width)
    return found


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """190 MB of weights with 75 million numbers in experts."""
    (tmp_path / "config.json").write_text(json.dumps(MIXTURE))
    header, end = {}, 0
    for name, shape in shapes().items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(VALUE * (end // 2))
    return tmp_path


def loaded(path: Path) -> tuple[int, int, int]:
    """Bytes before and after loading, and those of the packed matrices."""
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG,
    )
    before, after, weights = map(int, done.stdout.split())
    return before, after, weights


def activations(subject: Subject) -> int:
    lines = engine("penstock").rule(subject.spec, here(), Cut(1, 1), Load(256, 64))
    return sum(line.bytes for line in lines if line.name == "activations")


def check(path: Path, planned: int, subject: Subject) -> None:
    before, after, weights = loaded(path)
    assert planned == weights
    assert after == pytest.approx(before + weights + activations(subject), rel=0.05)


def test_the_default_model(model_file: Path) -> None:
    subject = read_subject(str(model_file))
    matrices = (m for m in whole(subject.spec) if m.part != "vectors")
    check(model_file, subject.weights.bytes(matrices), subject)


def test_a_mixture_of_experts(mixture: Path) -> None:
    subject = read_subject(str(mixture))
    matrices = (m for m in whole(subject.spec) if m.part != "vectors")
    check(mixture, as_packed(subject.weights).bytes(matrices), subject)
