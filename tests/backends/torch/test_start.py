"""Starts that fail say why, and what a rank may allocate."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from penstock.backends import load_backend
from penstock.backends.gpu_start import rank_of_host
from penstock.backends.torch import backend as backend_module
from penstock.backends.torch.kernels import decode, latent
from penstock.backends.torch.shard import whole
from penstock.backends.torch.startup.memory import split_bytes
from penstock.backends.torch.step import device as device_module
from penstock.backends.torch.step.nvidia import check_driver
from penstock.core import Numerics, PenstockError
from penstock.engine.startup import read_model
from penstock.model import load_model
from penstock.model.spec import DecoderSpec, LatentAttention, Recipe
from tests.backends.torch.driving import backend, config_of
from tests.real_ranks import TINY


def broken(tmp_path: Path, edit: object) -> str:
    directory = tmp_path / "llama"
    shutil.copytree(TINY / "llama", directory)
    file = directory / "model.safetensors"
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    edit(header, data, 8 + size)  # type: ignore[operator]
    written = json.dumps(header).encode()
    file.write_bytes(len(written).to_bytes(8, "little") + written + data[8 + size :])
    return str(directory)


def start(model: str) -> None:
    config = config_of(model)
    load_backend(config, read_model(config)).close()  # type: ignore[union-attr]


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    model = broken(tmp_path, lambda header, *_: header.pop(name))
    with pytest.raises(PenstockError, match=f"tensor '{name}' is missing"):
        start(model)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    model = broken(tmp_path, lambda header, *_: header[name].update(shape=[96, 32]))
    with pytest.raises(PenstockError, match=rf"tensor '{name}' has the shape \[96, 32\]"):
        start(model)


def test_a_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"

    def spoil(header: dict[str, dict[str, list[int]]], data: bytearray, base: int) -> None:
        at = base + header[name]["data_offsets"][0]
        data[at : at + 4] = b"\xff\xff\xff\x7f"

    with pytest.raises(PenstockError, match=f"tensor '{name}' has values that are not finite"):
        start(broken(tmp_path, spoil))


def test_weights_made_at_load_are_refused_by_name() -> None:
    with (
        pytest.raises(PenstockError, match="--quantization int8"),
        backend("llama", quantization="int8"),
    ):
        pass


def test_facts_name_the_form_and_the_layout() -> None:
    with backend("llama", dtype="auto") as loaded:
        assert loaded.facts.numerics == Numerics(("bf16",), "bf16", "bf16-rows")
        assert loaded.facts.device == "torch-cpu"
        assert not loaded.facts.own_memory
        half = loaded.facts
    with backend("llama") as loaded:
        assert loaded.facts.numerics == Numerics(("f32",), "f32", "f32-rows")
        assert loaded.facts.fingerprint == half.fingerprint
        assert loaded.facts.weights_bytes > half.weights_bytes
    with backend("qwen2") as other:
        assert other.facts.fingerprint != half.fingerprint


def test_a_rank_may_allocate_what_the_largest_step_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "available_memory", lambda: 10**9)
    with backend("llama") as loaded:
        small = loaded.free_memory()
    with backend("llama", max_num_batched_tokens=2048) as loaded:
        assert loaded.free_memory() < small < 10**9


def eight_billion() -> DecoderSpec:
    """A residual stream of 4,096, an inner width of 14,336."""
    spec = load_model(TINY / "llama").spec
    layer = spec.layers[0]
    big = replace(
        layer,
        mixer=replace(layer.mixer, heads=32, kv_heads=8, head_dim=128),
        feed_forward=replace(layer.feed_forward, intermediate=14_336),
    )
    return replace(spec, hidden=4096, vocab=128_256, layers=(big,) * 32)


@pytest.mark.parametrize("family", ["llama", "deepseek3"])
def test_parts_of_a_split_attention_are_counted(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the heads and widths of a large model, for any number of rows and any GPU."""
    spec = eight_billion() if family == "llama" else load_model(TINY / family).spec
    mixer, device = spec.layers[0].mixer, torch.device("cpu")
    if isinstance(mixer, LatentAttention):
        mixer = replace(mixer, heads=128, kv_rank=512, rope_dim=64)
        spec = replace(spec, layers=tuple(replace(each, mixer=mixer) for each in spec.layers))
        heads, width = 128, mixer.kv_rank
        programs = 128 // latent.latent_sizes(128, 576, 512, 2, 99 << 10, False)["BLOCK_H"]
    else:
        heads, width, programs = mixer.heads, mixer.head_dim, mixer.kv_heads
    shard, seen = whole(spec), set()
    for count in (108, 132, 148, 188):
        monkeypatch.setattr(decode, "multiprocessors", lambda _, count=count: count)
        for rows in (*range(1, 600), 8192):
            splits = decode.split_count(rows * programs, 1 << 17, device)
            seen.add(splits)
            kept = splits > 1 or family != "llama"
            taken = 4 * rows * heads * splits * (width + 1) * kept
            assert taken <= split_bytes(spec, shard, rows)
    assert seen == {1, 2, 4, 8, 16, 32}


def test_a_machine_without_a_gpu_is_told_so() -> None:
    with pytest.raises(PenstockError, match=r"--device cuda: .*needs a driver from 580 on"):
        check_driver()


def test_the_device_that_is_out_of_memory_says_what_to_lower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has a total capacity of 8 GiB "
            "of which 1.50 GiB is free. Including non-PyTorch memory, this process has 6.50 GiB"
        )

    for function, what, remedy in (
        ("make_pools", "the KV pools", "Lower --kv-cache-memory-bytes"),
        ("load_weights", "the weights", "Cut the model with --tensor-parallel-size"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(backend_module, function, full)
            with (
                pytest.raises(
                    PenstockError,
                    match=rf"for {what}: .*9\.00 GiB\. .*1\.50 GiB is free\. {remedy}",
                ) as caught,
                backend("llama"),
            ):
                pass
        assert "non-PyTorch" not in str(caught.value)
    assert "--kv-cache" not in str(caught.value), "no such flag makes weights smaller"


def test_ranks_of_a_host_take_its_gpus_in_order() -> None:
    shard = {"stage": [1, 2], "rank": 1, "heads": [0, 2, 4]}
    config = config_of("llama", tensor_parallel_size=2, pipeline_parallel_size=2)
    assert rank_of_host(config, None) == 0
    assert rank_of_host(config, (json.dumps(shard), "{}")) == 3


def test_a_rank_on_ray_sees_its_own_gpu_alone() -> None:
    shard = {"stage": [1, 2], "rank": 1, "heads": [0, 2, 4]}
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    config = config_of("llama", distributed_executor_backend="ray", **sizes)
    assert rank_of_host(config, (json.dumps(shard), "{}")) == 0


def test_ranks_of_hosts_with_fewer_stages_begin_at_their_first_gpu() -> None:
    """Four stages on three nodes: two, one and one."""
    config = config_of("llama", pipeline_parallel_size=4)
    config = replace(config, parallel=replace(config.parallel, nnodes=3))
    shards = [json.dumps({"stage": [stage, 4], "rank": 0, "heads": [0, 4]}) for stage in range(4)]
    assert [rank_of_host(config, (shard, "{}")) for shard in shards] == [0, 1, 0, 0]


def test_recipes_of_a_stacked_tensor_name_an_expert() -> None:
    from penstock.backends.torch.load.recipes import of_expert

    assert of_expert(Recipe("a.{e}.b", scales="a.{e}.s"), 3) == Recipe("a.3.b", scales="a.3.s")
    assert of_expert(Recipe("a"), 3) == Recipe("a", expert=3)
