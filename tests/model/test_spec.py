"""The JSON of specs and recipes, and the features that the decoder refuses by name."""

import json
from dataclasses import replace
from pathlib import Path

from penstock.model.kv_groups import KvLayers, kv_groups
from penstock.model.sharding import plan_grid
from penstock.model.sizing import kv_spec, state_bytes
from penstock.model.spec import (
    Attention,
    Clamp,
    DecoderSpec,
    Experts,
    LatentAttention,
    Layer,
    LinearAttention,
    Mlp,
    Norm,
    Norms,
    Recipe,
    Rope,
    Router,
    ShortConvolution,
    StateShape,
    WeightRecipes,
)

RMS = Norm("rms", 1e-6)
ATTENTION = Attention(heads=6, kv_heads=2, head_dim=16, rope=Rope(1e4))
MLP = Mlp("gated", 32, "silu")
CLAMP = Clamp(limit=7.0, alpha=1.702, offset=1.0)
LAYER = Layer(Norms(RMS), ATTENTION, Norms(RMS), MLP)
SPEC = DecoderSpec("llama", 96, 256, 128, RMS, (LAYER,) * 3)


def with_mixer(**changes: object) -> Layer:
    return replace(LAYER, mixer=replace(ATTENTION, **changes))  # type: ignore[arg-type]


def with_mlp(**changes: object) -> Layer:
    return replace(LAYER, feed_forward=replace(MLP, **changes))  # type: ignore[arg-type]


EXPERTS = Experts(8, 2, MLP, Router("softmax"))


MLA = LatentAttention(
    heads=6,
    kv_rank=64,
    plain_dim=16,
    rope_dim=8,
    value_dim=16,
    norm=Norm("layer", 1e-6),
    query_rank=48,
    rope=Rope(1e4),
)
UNSUPPORTED: list[tuple[str, Layer]] = [
    ("a norm of the latent that is not plain RMS", replace(LAYER, mixer=MLA)),
    (
        "a gate of a shared expert that is not there",
        replace(LAYER, feed_forward=replace(EXPERTS, shared_gate=True)),
    ),
    ("a sublayer without a norm before it", replace(LAYER, mixer_norms=Norms())),
    ("an RMS norm with a bias", replace(LAYER, mixer_norms=Norms(Norm("rms", 1e-6, bias=True)))),
    ("attention with a window and a chunk", with_mixer(window=64, chunk=64)),
    ("values of another size than keys", with_mixer(value_dim=8)),
    ("a query and key norm that is not plain RMS", with_mixer(qk_norm=Norm("layer", 1e-6))),
    (
        "norms of queries and keys before and after rotation",
        with_mixer(qk_norm=RMS, qk_norm_after=1e-6),
    ),
    ("this activation in this kind of feed-forward", with_mlp(activation="gelu")),
    ("a clamped feed-forward of another activation", with_mlp(activation="gelu", clamp=CLAMP)),
    ("this activation in this kind of feed-forward", with_mlp(kind="plain")),
    ("a short convolution", replace(LAYER, mixer=ShortConvolution(96, 3, 2))),
    ("layers with different heads", with_mixer(heads=4)),
]
"""The decoder's refusal of each layer (crates/compute/decoder/tests/suite/checkpoints.rs)."""


def test_what_the_decoder_refuses_is_written_as_it_is_tested_there(repository: Path) -> None:
    written = [
        {"refused": name, "layer": json.loads(replace(SPEC, layers=(layer,)).to_json())["kinds"][0]}
        for name, layer in UNSUPPORTED
    ]
    assert json.loads((repository / "tests/fixtures/unsupported.json").read_text()) == written


def test_layers_are_written_once_for_each_kind() -> None:
    windowed = with_mixer(window=24)
    written = json.loads(replace(SPEC, layers=(windowed, LAYER, windowed)).to_json())
    assert written["layers"] == [0, 1, 0]
    assert [kind["mixer"].get("window") for kind in written["kinds"]] == [24, None]


def test_widths_are_those_of_all_feed_forwards() -> None:
    shared = replace(EXPERTS, expert=replace(MLP, intermediate=16), shared=with_mlp().feed_forward)
    spec = replace(SPEC, layers=(LAYER, replace(LAYER, feed_forward=shared)))
    assert spec.widths == (16, 32)
    assert (SPEC.experts, spec.experts) == (None, 8)


def test_the_attention_is_that_of_the_first_layer_that_has_any() -> None:
    convolution = replace(LAYER, mixer=ShortConvolution(96, 3, 2))
    spec = replace(SPEC, layers=(convolution, LAYER, convolution, with_mixer(window=24)))
    assert spec.attention == spec.first_attention == ATTENTION
    assert plan_grid(spec, 2, 1).heads == plan_grid(SPEC, 2, 1).heads


def test_layers_without_keys_and_values_are_in_no_group() -> None:
    convolution = replace(LAYER, mixer=ShortConvolution(96, 3, 2))
    chunked = with_mixer(chunk=32)
    spec = replace(SPEC, layers=(convolution, chunked, LAYER, convolution, chunked))
    groups = (KvLayers((1, 4), 32, True), KvLayers((2,), None, False))
    assert kv_groups(spec) == groups
    own = kv_groups(spec, range(2, 4))
    assert [group.layers for group in own] == [(), (2,)]
    assert [group.layers for group in kv_spec(spec, plan_grid(spec, 1, 1), 0, 16).groups] == [
        (1, 4),
        (2,),
    ]


def test_states_are_counted_in_f32_with_the_tails_of_convolutions() -> None:
    """The published sizes of Qwen3-Next-80B-A3B and LFM2-1.2B, for one layer."""
    delta = LinearAttention(
        key_heads=16, value_heads=32, key_dim=128, value_dim=128, scalars=2, kernel=4
    )
    assert delta.state == StateShape(16, 2 * 128 * 128 + 3 * (2 * 128 + 2 * 128))
    assert ShortConvolution(2048, 3, 8).state == StateShape(8, 2 * 256)
    convolution = ShortConvolution(2048, 3, 8)
    layers = (replace(LAYER, mixer=delta), LAYER, replace(LAYER, mixer=convolution))
    spec = replace(SPEC, layers=layers)
    whole = 4 * (32 * 128 * 128 + 3 * 8192) + 4 * 2 * 2048
    assert state_bytes(spec, plan_grid(spec, 1, 1), 0) == whole
    halves = plan_grid(spec, 2, 1)
    assert state_bytes(spec, halves, 0) == state_bytes(spec, halves, 1) == whole // 2


def test_defaults_are_left_out() -> None:
    text = SPEC.to_json()
    assert not any(word in text for word in ("null", "false", "chunk", "learned_positions"))
    assert "learned_positions" in replace(SPEC, learned_positions=True).to_json()


def test_a_whole_tensor_is_written_as_its_name() -> None:
    recipes = WeightRecipes(
        embed=Recipe("wte"),
        final_norm=Recipe("norm"),
        layers=({"q": Recipe("c_attn", rows=(0, 96), transposed=True)},),
    )
    assert json.loads(recipes.to_json()) == {
        "embed": "wte",
        "final_norm": "norm",
        "layers": [{"q": {"tensor": "c_attn", "rows": [0, 96], "transposed": True}}],
    }
