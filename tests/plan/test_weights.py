"""Bytes of a weight, as checkpoints describe themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from penstock.backends import load_backend
from penstock.core import PenstockError
from penstock.model import load_model
from penstock.model.sizing import whole
from penstock.plan.subject import read_subject
from penstock.plan.weights import as_packed, stored

from tests.plan.conftest import FP8, R1, Model
from tests.real_ranks import TINY, exact_config

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


def test_parts_that_stay_as_they_are(directory: Callable[..., Path]) -> None:
    made = directory("Qwen/Qwen3-235B-A22B")
    (made / "hf_quant_config.json").write_text(json.dumps(NVFP4))
    parts = read_subject(str(made)).weights.parts
    assert parts["experts"] == "nvfp4"
    assert parts["attention"] == parts["head"] == parts["embedding"] == "bf16"


def test_groups_of_integers() -> None:
    scheme = {"num_bits": 4, "group_size": 32, "type": "int"}
    ignored = ["re:.*self_attn.*", "re:.*shared_experts.*", "lm_head"]
    found = stored(
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": scheme}},
                "ignore": ignored,
            }
        },
        {},
    )
    assert found.size("experts") == 0.5 + 2 / 32
    assert found.size("shared") == found.size("attention") == 2


def test_a_quantisation_that_is_not_known_asks_for_the_type(directory: Callable[..., Path]) -> None:
    settings = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    made = str(directory("Qwen/Qwen3-8B", quantization_config=settings))
    with pytest.raises(PenstockError, match="--weights"):
        read_subject(made)
    assert read_subject(made, "nvfp4").weights.name == "nvfp4"


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_bytes_of_files_come_from_their_headers(family: str) -> None:
    subject = read_subject(str(TINY / family))
    assert subject.file_bytes == subject.weights.bytes(whole(subject.spec))
    assert not subject.refused


def test_a_directory_with_nothing_but_its_config(model: Model) -> None:
    subject = model(R1, quantization_config=FP8, architectures=["DeepseekV9ForCausalLM"])
    assert subject.file_bytes is None
    assert subject.refused == "no backend runs DeepseekV9ForCausalLM yet"


def test_this_machine_holds_other_types_than_the_file(model: Model) -> None:
    held = as_packed(model(R1, quantization_config=FP8).weights)
    assert held.name == "int8"
    assert held.size("experts") == 1 + 2 / 32
    assert held.size("head") == 2
    assert held.size("router") == held.size("vectors") == 4


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
    assert subject.weights.size("attention") == 2
    assert read_subject(str(TINY / "mixtral.gguf")).weights.name == "F16"
