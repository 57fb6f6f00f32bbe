"""The longest sequence that a plan says is served: its KV fits, and the server takes it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock_ops.deploy.engines.penstock import command
from penstock_ops.deploy.plan_file import read_plan
from penstock_ops.deploy.settings import Settings, Volume
from penstock_ops.plan.catalogue import entries
from penstock_ops.plan.engines import Load, engine
from penstock_ops.plan.fitting import Placement, fit
from penstock_ops.plan.hardware import Target, names, parse_target
from penstock_ops.plan.subject import read_subject
from tests.e2e.server import Server
from tests.plan.conftest import R1
from tests.plan.test_profile import PROFILE

MODELS = ("Qwen/Qwen3-8B", "meta-llama/Meta-Llama-3.1-70B", R1)


def kv_bytes(name: str, ranks: int, stages: int) -> int:
    """Bytes of a token's KV in bf16 on a rank of the largest stage, from config.json's own keys."""
    config = entries()[name].config
    layers = math.ceil(config["num_hidden_layers"] / stages)
    if "kv_lora_rank" in config:
        return 2 * layers * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return 2 * 2 * layers * math.ceil(config["num_key_value_heads"] / ranks) * size


def largest(name: str) -> Target:
    """Four nodes of a type, or as many devices of one as four nodes have."""
    one = parse_target(name)
    return parse_target(f"{name}:{4 if one.node else 4 * one.per_node}")


@pytest.mark.parametrize("rules", ["vllm", "sglang", "penstock"])
@pytest.mark.parametrize("name", MODELS)
def test_the_kv_of_the_longest_sequence_fits_on_all_hardware(name: str, rules: str) -> None:
    subject, own = read_subject(name), entries()[name].config["max_position_embeddings"]
    short = 0
    for hardware in (*names("accelerators"), *names("nodes")):
        for load in (Load(), Load(fraction=0.7)):
            placement = Placement(subject, largest(hardware), engine(rules), load, "bf16")
            memory = fit(placement)
            if not placement.holds(memory):
                continue
            length = memory.longest(own)
            each = kv_bytes(name, memory.cut.tp, memory.cut.pp)
            rooms = [rank.room for rank in memory.ranks]
            assert 0 < length <= own
            assert math.ceil(length / 16) * 16 * each <= max(rooms)
            # One block more exceeds the pool of some rank, unless the model ends there.
            if length < own:
                short += 1
                assert any(rank.sequence(length + 16) > rank.room for rank in memory.ranks)
            if memory.cut.pp == 1:
                assert math.ceil(length / 16) * 16 * each <= min(rooms)
    assert short or name != "meta-llama/Meta-Llama-3.1-70B", "both cases were seen"


def test_a_server_with_the_flags_of_a_plan_takes_a_chat_of_8000_tokens(
    model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load of the plan has 80 tokens. A stop string ends the answer early."""
    monkeypatch.setattr("penstock_ops.plan.profile.measure", lambda *_: PROFILE)
    output, runtime = tmp_path / "plan.yaml", tmp_path / "run"
    runtime.mkdir()
    words = ["--measure", "--rate", "0.2", "--isl", "64", "--osl", "16", "--requests", "20"]
    assert main(["plan", str(model_file), *words, "-o", str(output)]) == 0
    plan = read_plan(output)
    assert plan["choice"]["max_model_len"] == 8192
    made = command(Settings(plan, "test", "", Volume(), str(model_file)), leader=True)
    kept = ("--max-num", "--max-model-len", "--kv-cache-memory")
    flags = [word for word in made if isinstance(word, str) and word.startswith(kept)]
    assert len(flags) == 4
    with Server(model_file, runtime, *flags) as server, server.client() as client:
        body = {
            "model": plan["model"]["name"],
            "messages": [{"role": "user", "content": "Name a colour."}],
            "max_tokens": 8000,
            "stop": [".", "\n", "a", "e"],
        }
        models = client.get("/v1/models").json()["data"]
        assert models[0]["max_model_len"] == 8192
        answer = client.post("/v1/chat/completions", json={**body, "model": models[0]["id"]})
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["finish_reason"] == "stop"
        assert (
            client.post(
                "/v1/chat/completions", json={**body, "model": models[0]["id"], "max_tokens": 8192}
            ).status_code
            == 400
        )
