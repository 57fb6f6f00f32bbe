"""Bytes of a weight, as checkpoints describe themselves."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from penstock.backends import load_backend
from penstock.cli.main import main
from penstock.core import PenstockError
from penstock.model import load_model, quantised_recipes
from penstock.model.errors import ModelError
from penstock.model.sharding import plan_grid
from penstock.model.sizing import Matrix, whole
from penstock_ops.plan import modules
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.hardware import accelerator
from penstock_ops.plan.memory import sized
from penstock_ops.plan.subject import read_subject
from penstock_ops.plan.weights import as_packed
from tests.plan.conftest import FP8, R1, Model
from tests.real_ranks import TINY, exact_config

NO_EXPRESSION = "is not a supported regular expression"

MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
}
NVFP4 = {
    "quantization": {
        "quant_algo": "NVFP4",
        "exclude_modules": [f"model.layers.{i}.self_attn.q_proj" for i in range(9)] + ["lm_head"],
    }
}


@pytest.mark.parametrize(
    ("name", "settings", "gigabytes"),
    [
        # Sums of the tensors of the published files, less their layers for drafting.
        (R1, FP8, 673.0),
        ("openai/gpt-oss-120b", MXFP4, 65.2),
        ("openai/gpt-oss-20b", MXFP4, 13.76),
    ],
)
def test_files_of_quantised_models(
    model: Model, name: str, settings: dict[str, object], gigabytes: float
) -> None:
    subject = model(name, quantization_config=settings)
    size = subject.weights.bytes(whole(subject.spec))
    assert size / 1e9 == pytest.approx(gigabytes, rel=0.005)


def test_matrices_that_stay_as_they_are(directory: Callable[..., Path]) -> None:
    """The projections of queries in nine layers."""
    made = directory("Qwen/Qwen3-235B-A22B")
    (made / "hf_quant_config.json").write_text(json.dumps(NVFP4))
    weights = read_subject(str(made)).weights
    assert weights.parts["experts"] == weights.parts["attention"] == "nvfp4"
    assert weights.parts["head"] == weights.parts["embedding"] == "bf16"
    assert weights.exceptions == {(i, "attention", "q"): "bf16" for i in range(9)}


LLAMA = "meta-llama/Meta-Llama-3.1-8B"
H, F, KV, LAYERS, VOCAB = 4096, 14336, 1024, 32, 128256
QKVO, MLP = 2 * H * H + 2 * H * KV, 3 * H * F
OUTER = 2 * 2 * VOCAB * H + 2 * (2 * LAYERS + 1) * H
"""Bytes of embedding, head and norms of Llama 3.1 8B in bf16."""
LINEARS = {
    "q": (H, H), "k": (KV, H), "v": (KV, H), "o": (H, H),
    "gate": (F, H), "up": (F, H), "down": (H, F),
}  # fmt: skip
ATTENTION, FEED = "qkvo", ("gate", "up", "down")
W4 = 0.5 + 2 / 128
FOUR = {"num_bits": 4, "group_size": 128, "type": "int", "symmetric": True}
EIGHT = {"num_bits": 8, "type": "float", "strategy": "channel"}


HOSTILE = (
    "(.*.*)*x$",
    "(a|aa)+$",
    "(.+)+$",
    "(?:m.*){20}x",
    ".*" * 20 + "x$",
    ".?" * 40 + "x{40}$",
    "(.|.)" * 40 + "x$",
    "(?x)(.*.*) *x$",
    "(?:.*[)](.*)){9}x",
    "(" * 400 + ")" * 400,
    "a{99999999999999999999}",
    "m" * 100_000,
)
"""Expressions that would not end in years, or that `re` cannot hold."""


def gptq(roles: Iterable[str], bits: int, group: int) -> int:
    """Bytes of a layer's matrices: codes, scales in f16, zero points in codes, a group of each
    input in 32 bits.
    """
    shapes = [LINEARS[role] for role in roles]
    return sum(n * k * bits // 8 + k // group * (2 * n + n * bits // 8) + 4 * k for n, k in shapes)


def awq(roles: Iterable[str], group: int) -> int:
    """Like `gptq`, with 4 bits and without groups of inputs."""
    return sum(gptq([role], 4, group) - 4 * LINEARS[role][1] for role in roles)


def numbers(*roles: str) -> int:
    return sum(math.prod(LINEARS[role]) for role in roles)


def outputs(*roles: str) -> int:
    return sum(LINEARS[role][0] for role in roles)


def groups(*pairs: tuple[list[str], dict[str, object]], **more: object) -> dict[str, object]:
    named = {
        f"group_{i}": {"targets": targets, "weights": weights}
        for i, (targets, weights) in enumerate(pairs)
    }
    return {"quant_method": "compressed-tensors", "config_groups": named, **more}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (groups((["re:.*mlp.*"], FOUR)), LAYERS * (2 * QKVO + W4 * MLP)),
        (
            groups(
                (["Linear"], FOUR),
                ignore=["lm_head", *(f"re:model\\.layers\\.{i}\\..*" for i in range(16))],
            ),
            16 * (2 + W4) * (QKVO + MLP),
        ),
        (
            groups(
                (["Linear"], FOUR),
                ignore=[
                    "lm_head",
                    *(f"model.layers.{i}.mlp.{m}_proj" for i in range(32) for m in ("gate", "up")),
                ],
            ),
            LAYERS * (W4 * (QKVO + MLP // 3) + 2 * (MLP // 3 * 2)),
        ),
        (
            groups((["re:.*self_attn.*"], EIGHT), (["re:.*mlp.*"], FOUR)),
            LAYERS * (QKVO + 2 * outputs(*ATTENTION) + W4 * MLP),
        ),
        (
            groups((["Linear"], FOUR), (["re:.*down_proj"], EIGHT), ignore=["re:.*lm_head"]),
            LAYERS * (W4 * (QKVO + MLP // 3 * 2) + MLP // 3 + 2 * H),
        ),
        (
            {**FP8, "modules_to_not_convert": ["model.layers.0", "lm_head"]},
            (2 + 31 * (1 + 4 / 128**2)) * (QKVO + MLP),
        ),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["o_proj", "down_proj"]},
            LAYERS * (QKVO - H * H + MLP // 3 * 2 + 5 * 4 + 2 * (H * H + MLP // 3)),
        ),
        (
            {"quant_method": "fp8", "activation_scheme": "static"},
            LAYERS * (QKVO + MLP + 7 * 8),
        ),
        (
            {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
            LAYERS * (QKVO + MLP + 4 * outputs(*LINEARS) + 7 * 4),
        ),
        (
            {
                "quant_method": "gptq",
                "bits": 4,
                "group_size": 128,
                "dynamic": {
                    "-:.*self_attn.*": {},
                    "+:.*down_proj": {"bits": 8, "group_size": 64},
                },
            },
            LAYERS * (2 * QKVO + gptq(["gate", "up"], 4, 128) + gptq(["down"], 8, 64)),
        ),
        (
            {
                "quant_method": "gptq",
                "bits": 4,
                "group_size": 128,
                "modules_in_block_to_quantize": [["mlp.gate_proj", "mlp.up_proj"]],
            },
            LAYERS * (2 * (QKVO + MLP // 3) + gptq(["gate", "up"], 4, 128)),
        ),
        (
            {
                "quant_method": "awq",
                "w_bit": 4,
                "q_group_size": 128,
                "modules_to_not_convert": ["self_attn"],
            },
            LAYERS * (2 * QKVO + awq(FEED, 128)),
        ),
        (
            {
                "quant_algo": "MIXED_PRECISION",
                "quant_method": "modelopt",
                "quantized_layers": {
                    f"model.layers.{i}.mlp.{m}_proj": {"quant_algo": "NVFP4", "group_size": 16}
                    for i in range(8)
                    for m in ("gate", "up", "down")
                },
            },
            LAYERS * 2 * QKVO + (24 * 2 + 8 * (0.5 + 1 / 16)) * MLP,
        ),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "FP8",
                "exclude_modules": ["model.layers.1*", "lm_head", "model.layers.*.self_attn"],
            },
            LAYERS * 2 * QKVO + (11 * 2 + 21) * MLP + 21 * 3 * 8,
        ),
    ],
)
def test_bytes_are_summed_by_layer_and_matrix(
    model: Model, settings: dict[str, object], expected: float
) -> None:
    subject = model(LLAMA, quantization_config=settings)
    assert subject.weights.bytes(whole(subject.spec)) == pytest.approx(OUTER + expected, rel=1e-6)


def test_ranks_hold_what_their_own_layers_have(model: Model) -> None:
    """The first stage keeps its layers as they are, the second has four bits."""
    ignored = ["lm_head", *(rf"re:model\.layers\.{i}\." for i in range(16))]
    subject = model(LLAMA, quantization_config=groups((["Linear"], FOUR), ignore=ignored))
    device = accelerator("h100-sxm-80gb")
    memory = sized(subject.spec, subject.weights, device, Cut(1, 2), "bf16")
    first, second = (rank.weights for rank in memory.ranks)
    half, cut = OUTER / 2, plan_grid(subject.spec, 1, 2).layers[1]
    assert cut >= 16
    assert first == pytest.approx(half + (32 + (cut - 16) * W4) * (QKVO + MLP), rel=1e-4)
    assert second == pytest.approx(half + (LAYERS - cut) * W4 * (QKVO + MLP), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (groups((["Linear"], FOUR), ignore=["model.layers.0.unheard_of"]), "unheard_of"),
        (groups((["re:.*unheard_of.*"], FOUR)), "unheard_of"),
        (groups((["LlamaAttention"], FOUR)), "LlamaAttention"),
        (
            groups((["re:.*o_proj"], {**FOUR, "group_size": 96})),
            "layer 0, attention o: groups of 96 do not divide 4096 inputs",
        ),
        (
            {"quant_method": "gptq", "bits": 3, "group_size": 14336},
            "groups of 14336 do not divide 4096 inputs",
        ),
        (
            groups((["Linear"], {"num_bits": 6, "type": "float"})),
            "num_bits = 6 .* floats of 4 or 8 bits",
        ),
        (groups((["Linear"], FOUR), ignore=["re:("]), NO_EXPRESSION),
        ({"quant_method": "fp8", "modules_to_not_convert": ["blocks.*.ffn"]}, "blocks"),
        ({"quant_method": "new"}, "new"),
        ({"quant_method": "gptq", "bits": True}, "bits = True"),
        *(
            (groups((["Linear"], FOUR), ignore=[f"re:{hostile}"]), NO_EXPRESSION)
            for hostile in HOSTILE
        ),
        ({**FP8, "modules_to_not_convert": ["model" + "*a" * 40]}, NO_EXPRESSION),
        ({"quant_method": "gptq", "bits": None}, "bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"x": 3}}, "x"),
    ],
)
def test_what_names_no_matrix_is_refused_by_name(
    directory: Callable[..., Path], settings: dict[str, object], named: str
) -> None:
    made = str(directory(LLAMA, quantization_config=settings))
    with pytest.raises(PenstockError, match=named):
        read_subject(made)
    assert read_subject(made, "int4").weights.name == "int4"


def test_many_slow_expressions_are_refused(
    directory: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "PATIENCE", 0.2)
    monkeypatch.setattr(quantised_recipes, "PATIENCE", 0.2)
    settings = groups((["Linear"], FOUR), ignore=["re:(.*.*.*.*)q", "re:.*.*.*.*x"] * 1000)
    made = str(directory(LLAMA, quantization_config=settings))
    with pytest.raises(PenstockError, match=r"more than 0.2 seconds; .*--weights"):
        read_subject(made)


@pytest.mark.parametrize(
    "settings",
    [
        groups((["Linear"], FOUR), kv_cache_scheme={"num_bits": 8, "type": "float"}),
        {"quant_algo": "FP8", "quant_method": "modelopt", "kv_cache_quant_algo": "FP8"},
    ],
)
def test_kv_is_of_the_type_that_the_checkpoint_asks_for(
    directory: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    settings: dict[str, object],
) -> None:
    """vLLM takes it, too."""
    path = str(directory(LLAMA, quantization_config=settings))
    words = ["plan", path, "--on", "l40s-48gb", "--explain"]
    found = []
    for more in ([], ["--kv-cache-dtype", "bf16"], ["--engine", "sglang"]):
        assert main([*words, *more]) == 0
        found.append(re.findall(r"([\d.]+) KiB +a token", capsys.readouterr().out))
    assert found == [["64.00"], ["128.00"], ["128.00"]]


def test_a_file_beside_may_quantise_the_kv_alone(directory: Callable[..., Path]) -> None:
    made = directory(LLAMA)
    settings = {"quant_algo": None, "kv_cache_quant_algo": "FP8"}
    (made / "hf_quant_config.json").write_text(json.dumps({"quantization": settings}))
    subject = read_subject(str(made))
    assert (subject.kv, subject.weights.name, subject.refused) == ("fp8", "bf16", "")


def test_integers_without_groups_have_a_name(model: Model) -> None:
    scheme = {"num_bits": 8, "type": "int", "strategy": "channel", "group_size": None}
    assert model(LLAMA, quantization_config=groups((["Linear"], scheme))).weights.name == (
        "int8 by channel"
    )


def test_groups_of_integers(directory: Callable[..., Path]) -> None:
    scheme = {"num_bits": 4, "group_size": 32, "type": "int"}
    ignored = ["re:.*self_attn.*", "re:.*shared_experts.*", "lm_head"]
    settings = groups((["Linear"], scheme), format="pack-quantized", ignore=ignored)
    made = str(directory("moonshotai/Kimi-K2-Instruct", quantization_config=settings))
    found = read_subject(made).weights
    experts = Matrix("experts", "up", 5, 2048, 7168)
    assert found.size(experts) == 2048 * 7168 * (0.5 + 2 / 32) + 16
    assert found.parts["shared"] == found.parts["attention"] == "bf16"


def test_a_quantisation_that_is_not_known_asks_for_the_type(directory: Callable[..., Path]) -> None:
    settings = {"quant_method": "modelopt", "quant_algo": "MIXED"}
    made = str(directory("Qwen/Qwen3-8B", quantization_config=settings))
    with pytest.raises(PenstockError, match="--weights"):
        read_subject(made)
    assert read_subject(made, "nvfp4").weights.name == "nvfp4"


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_bytes_of_files_come_from_their_headers(family: str) -> None:
    subject = read_subject(str(TINY / family))
    assert subject.file_bytes == subject.weights.bytes(whole(subject.spec))
    assert not subject.refused


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"a": []},
        {"a": {"dtype": "F32"}},
        {"a": {"data_offsets": [1]}},
        {"a": {"data_offsets": ["0", "4"]}},
    ],
)
def test_a_damaged_header_is_one_error(directory: Callable[..., Path], header: object) -> None:
    content = json.dumps(header).encode()
    weights = directory(LLAMA) / "model.safetensors"
    weights.write_bytes(len(content).to_bytes(8, "little") + content)
    with pytest.raises(ModelError, match=r"model\.safetensors: the header "):
        read_subject(str(weights.parent))


def test_a_directory_with_nothing_but_its_config(model: Model) -> None:
    subject = model(R1, quantization_config=FP8, architectures=["DeepseekV9ForCausalLM"])
    assert subject.file_bytes is None
    assert subject.refused == "no backend runs DeepseekV9ForCausalLM yet"


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        ({"bits": 4, "group_size": 128}, "s4"),
        ({"bits": 8, "group_size": -1}, "w8"),
        ({"bits": 4, "group_size": 128, "sym": False}, "bf16"),
        ({"bits": 4, "group_size": 128, "desc_act": True}, "bf16"),
        ({"bits": 4, "group_size": 16}, "bf16"),
    ],
)
def test_this_machine_holds_integers_in_its_own_forms(
    model: Model, settings: dict[str, object], form: str
) -> None:
    held = as_packed(model(LLAMA, quantization_config={"quant_method": "gptq", **settings}).weights)
    matrix = Matrix("dense", "up", 5, 4096, 1024)
    assert held.size(matrix) == matrix.packed(form)


def test_this_machine_holds_other_types_than_the_file(model: Model) -> None:
    held = as_packed(model(R1, quantization_config=FP8).weights)
    assert held.name == "int8"
    assert held.size(Matrix("experts", "up", 5, 2048, 7168)) == 2048 * 7168 * (1 + 2 / 32)
    assert held.size(Matrix("head", "head", None, 100, 64)) == 100 * 64 * 2
    assert held.parts["router"] == held.parts["vectors"] == "f32"


def test_the_default_form_of_a_checkpoint_is_what_the_decoder_packs() -> None:
    """bf16 tensors, whose sizes here are whole panels and groups but for the routers."""
    subject = read_subject(str(TINY / "qwen3"))
    backend = load_backend(exact_config("qwen3", {"dtype": "auto"}), load_model(TINY / "qwen3"))
    matrices = [m for m in whole(subject.spec) if m.part != "vectors"]
    packed = sum(m.packed("bf16") for m in matrices)
    assert backend.facts.weights_bytes == packed
    assert as_packed(subject.weights).bytes(matrices) == pytest.approx(packed, rel=0.1)


def test_a_gguf_file_counts_as_it_is_packed() -> None:
    subject = read_subject(str(TINY / "gptoss.gguf"))
    assert subject.weights.size(Matrix("attention", "q", 0, 64, 32)) == 64 * 32 * 2
    assert read_subject(str(TINY / "mixtral.gguf")).weights.name == "F16"


@pytest.mark.parametrize("name", ["Qwen3-8B", "gpt-oss-20b", "DeepSeek-V3.1-NVFP4"])
def test_bytes_of_a_model_are_the_sum_of_its_matrices(name: str) -> None:
    subject = read_subject(name)
    for types in (subject.weights, as_packed(subject.weights)):
        assert types.model_bytes(subject.spec) == types.bytes(whole(subject.spec))
