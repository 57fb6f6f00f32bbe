"""Environments of LMCache and of vLLM's Ray executor."""

from __future__ import annotations

import pytest

from penstock.config.foreign_environment import lmcache_settings, ray_settings
from penstock.config.resolve import resolve
from penstock.config.sections import TierConfig
from penstock.config.sources import gather
from penstock.core import InvalidValueError

GIB = 2**30
DAG, OVERLAP = "VLLM_USE_RAY_COMPILED_DAG", "VLLM_USE_RAY_COMPILED_DAG_OVERLAP_COMM"
SWITCHES = {DAG: "1", OVERLAP: "1", "VLLM_USE_RAY_SPMD_WORKER": "1"}
ON_RAY = {"distributed_executor_backend": ("ray",), "pipeline_parallel_size": ("2",)}


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (8, 1), (2, 4)])
def test_sizes_are_for_each_rank(tp: int, pp: int, caplog: pytest.LogCaptureFixture) -> None:
    """LMCache has its buffers in every worker: 100 GiB at TP8 are 800."""
    environ = {
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "100",
        "LMCACHE_LOCAL_DISK": "file:///kv/",
        "LMCACHE_MAX_LOCAL_DISK_SIZE": "5000.0",
    }
    sizes = {"tensor_parallel_size": (str(tp),), "pipeline_parallel_size": (str(pp),)}
    found = resolve(gather(sizes, None, environ), "m", "n").engine.tiers.tiers
    ranks = tp * pp
    ram, disk = (
        TierConfig("ram", ranks * 100 * GIB),
        TierConfig("disk", ranks * 5000 * GIB, path="/kv/"),
    )
    assert found == (ram, disk)
    assert ("each of" in caplog.text) == (ranks > 1)


def test_gpudirect_storage_has_the_size_of_the_disk() -> None:
    environ = {
        "LMCACHE_CUFILE_BUFFER_SIZE": "8192",
        "LMCACHE_LOCAL_CPU": "False",
        "LMCACHE_GDS_PATH": '"/kv/gds/"',
        "LMCACHE_MAX_LOCAL_DISK_SIZE": "2",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "5",
    }
    assert lmcache_settings(environ, 2) == {"kv_tier": (f"disk:/kv/gds/,{4 * GIB},gds=true",)}


@pytest.mark.parametrize("name", ["LMCACHE_GDS_PATH", "LMCACHE_LOCAL_DISK"])
def test_a_path_without_a_size_is_an_error(name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{name} is '/kv'.*--kv-tier disk:/kv,SIZE"):
        lmcache_settings({name: "/kv"}, 1)


def test_what_has_no_effect_is_named(caplog: pytest.LogCaptureFixture) -> None:
    environ = {
        "LMCACHE_USE_EXPERIMENTAL": "True",
        "LMCACHE_EXTRA_CONFIG": "{}",
        "LMCACHE_LOCAL_CPU": "false",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "1",
        "LMCACHE_CHUNK_SIZE": "256",
        "LMCACHE_CUFILE_BUFFER_SIZE": "8192",
        "LMCACHE_NIXL_ROLE": "sender",
    }
    assert lmcache_settings(environ, 1) == {}
    named = {record.getMessage().split(" is ignored: ")[0] for record in caplog.records}
    assert named == environ.keys() - {"LMCACHE_LOCAL_CPU"}


def test_switches_of_vllms_ray_executor(caplog: pytest.LogCaptureFixture) -> None:
    graph = ray_settings(SWITCHES, on_ray=True, on_gpus=False)
    assert graph == {"ray_channel": ("compiled-graph",)}
    tensors = ray_settings(SWITCHES, on_ray=True, on_gpus=True)
    assert tensors == {"ray_channel": ("compiled-graph-tensors",), "ray_overlap_comm": ("true",)}
    caplog.clear()
    assert ray_settings(SWITCHES, on_ray=False, on_gpus=True) == {}
    assert {record.getMessage().split()[0] for record in caplog.records} == SWITCHES.keys()
    caplog.clear()
    assert ray_settings({DAG: "0", OVERLAP: ""}, on_ray=True, on_gpus=True) == {}
    assert not caplog.records


def test_flags_come_before_switches() -> None:
    parallel = resolve(gather(ON_RAY, None, SWITCHES), "m", "n").engine.parallel
    assert (parallel.ray_channel, parallel.ray_overlap_comm) == ("compiled-graph", False)
    said = {**ON_RAY, "ray_channel": ("actor",)}
    assert resolve(gather(said, None, SWITCHES), "m", "n").engine.parallel.ray_channel == "actor"
    on_gpus = {**ON_RAY, "device": ("cuda",)}
    parallel = resolve(gather(on_gpus, None, SWITCHES), "m", "n").engine.parallel
    assert (parallel.ray_channel, parallel.ray_overlap_comm) == ("compiled-graph-tensors", True)


def test_what_a_flag_sets_is_said_to_be_ignored(caplog: pytest.LogCaptureFixture) -> None:
    lmcache = {"LMCACHE_MAX_LOCAL_CPU_SIZE": "1", "LMCACHE_CHUNK_SIZE": "256"}
    said = {**ON_RAY, "ray_channel": ("ring",), "kv_chunk_tokens": ("512",)}
    found = gather({**said, "device": ("cuda",)}, None, {**SWITCHES, **lmcache})
    assert (found["ray_channel"].texts, found["kv_chunk_tokens"].texts) == (("ring",), ("512",))
    assert "ray_overlap_comm" not in found
    lines = [record.getMessage() for record in caplog.records]
    understood = [line.partition(":")[0] for line in lines if "understood" in line]
    assert understood == ["LMCACHE_MAX_LOCAL_CPU_SIZE understood as --kv-tier ram"]
    assert {line for line in lines if "is given" in line} == {
        "LMCACHE_CHUNK_SIZE is ignored: --kv-chunk-tokens is given",
        *(f"{name} is ignored: --ray-channel is given" for name in SWITCHES),
    }


def test_a_number_of_ranks_too_long_to_read_is_refused_where_it_is_read() -> None:
    flags = {"tensor_parallel_size": ("1" * 5000,)}
    with pytest.raises(InvalidValueError, match=r"--tensor-parallel-size is '1+"):
        resolve(gather(flags, None, {}), "m", "n")
