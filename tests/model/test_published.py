"""config.json of published models: the spec that each gives, or the key that is refused.

`published.jsonl` has what is expected. The keys of each file that a decoder depends on are those of
the planner's catalogue, or in the row where the catalogue has no such model.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.model import ModelError
from penstock.model.spec import DecoderSpec, Experts, LatentAttention
from penstock_ops.plan.catalogue import entries
from tests.model.conftest import CONFIG

Row = dict[str, Any]


def catalogued(name: str) -> Row:
    """The files of a model in the catalogue; empty if it has no such model."""
    entry = entries().get(name)
    if entry is None:
        return {}
    beside = {"hf_quant_config": entry.quantised} if entry.quantised else {}
    return {"config": entry.config, **beside}


LINES = (Path(__file__).parent / "published.jsonl").read_text().splitlines()
ROWS: dict[str, Row] = {
    row["model"]: {**catalogued(row["model"]), **row} for row in map(json.loads, LINES)
}
assert len(ROWS) == len(LINES), "a model has two rows"
READ = [name for name, row in ROWS.items() if "spec" in row]
REFUSED = [name for name, row in ROWS.items() if "refused" in row]
LATENT = ("kv_rank", "plain_dim", "rope_dim", "value_dim", "query_rank")
INDEX: dict[str, object] = {"model.safetensors.index": {"weight_map": {}}}
"""Names of tensors, which some families look at."""


def alone(config: Row) -> Row:
    """These keys without the fixture's own."""
    return {**dict.fromkeys(CONFIG), **config}


def each(values: list[Any]) -> list[Any]:
    """The different ones, None last."""
    return sorted({*values}, key=lambda value: (value is None, value))


def experts_of(spec: DecoderSpec) -> Row:
    forms = [layer.feed_forward for layer in spec.layers]
    last, dense = forms[-1], sum(not isinstance(form, Experts) for form in forms)
    if not isinstance(last, Experts):
        return {"experts": None, "dense": dense}
    router = last.router
    return {
        "experts": last.experts,
        "chosen": last.experts_per_token,
        "router": router.score,
        "groups": [router.groups.count, router.groups.keep] if router.groups else None,
        "group_score": router.groups.by if router.groups else None,
        "scale_of_experts": router.scale,
        "normalise": router.normalise,
        "shared": last.shared.intermediate if last.shared else None,
        "shared_gate": last.shared_gate,
        "dense": dense,
    }


def attention_of(spec: DecoderSpec) -> Row:
    mixers: list[Any] = [layer.mixer for layer in spec.layers]
    first = mixers[0]
    if isinstance(first, LatentAttention):
        return {"latent": [getattr(first, name) for name in LATENT]}
    return {
        "kv_heads": first.kv_heads,
        "head_dim": first.head_dim,
        "windows": each([mixer.window for mixer in mixers]),
        "chunks": each([mixer.chunk for mixer in mixers]),
        "qkv_bias": first.qkv_bias,
        "qk_norm": first.qk_norm is not None,
        "qk_norm_after": first.qk_norm_after is not None,
        "unrotated": sum(mixer.rope is None for mixer in mixers),
        "softcap": first.softcap,
        "sinks": first.sinks,
    }


def facts(spec: DecoderSpec) -> Row:
    first: Any = spec.layers[0].mixer
    rope = first.rope
    scaling = rope.scaling if rope else None
    return {
        "layers": len(spec.layers),
        "heads": first.heads,
        "intermediate": spec.widths[0],
        "max_position": spec.max_position,
        "tied": spec.tied_embeddings,
        "theta": rope.theta if rope else None,
        "dims": rope.dims if rope else None,
        "scaling": scaling.kind if scaling else None,
        "scale": first.scale,
        "embed_scale": spec.embed_scale,
        "final_softcap": spec.final_softcap,
        **attention_of(spec),
        **experts_of(spec),
    }


def test_there_are_forty_published_models() -> None:
    assert len(READ) >= 40
    assert len(REFUSED) >= 10


@pytest.mark.parametrize("name", READ)
def test_a_published_model_has_its_spec(load_hf: Any, name: str) -> None:
    row = ROWS[name]
    info = load_hf(alone(row["config"]), **INDEX)
    scales = [recipe.scales for recipe in info.weights.layers[-1].values()]
    found = {**facts(info.spec), "block_scales": any(scales)}
    assert {key: found[key] for key in row["spec"]} == row["spec"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_key(load_hf: Any, name: str) -> None:
    row = ROWS[name]
    beside = {key: row[key] for key in ("hf_quant_config",) if key in row}
    with pytest.raises(ModelError, match=rf"\b{row['refused']}( = |: | is missing)"):
        load_hf(alone(row["config"]), **INDEX, **beside)
