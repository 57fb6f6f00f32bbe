"""Converts raw settings to sections: parses them, fills in the machine's defaults, and checks them
against each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.config.devices import DEVICES, with_feature
from penstock.config.flags import FLAGS, Flag
from penstock.config.kinds import Kind, PartError, Section
from penstock.config.machine import cpu_count, first_device
from penstock.config.nodes import resolve_nodes
from penstock.config.sections import (
    ON_CPUS,
    ON_GPUS,
    CacheConfig,
    ComputeConfig,
    Config,
    EngineConfig,
    LogConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    ServerConfig,
)
from penstock.config.sources import Raw
from penstock.config.terminal import has_styles
from penstock.config.tiers import read_tier, resolve_tiers
from penstock.core import InvalidValueError, PenstockError

CERTIFICATE_AND_KEY = "--ssl-certfile and --ssl-keyfile go together: give both or neither"


def parse(raw: Mapping[str, Raw]) -> dict[str, Any]:
    """A value for every flag, by key; its default if it is not set. Raises InvalidValueError, which
    names the source of the first wrong one.
    """
    return {flag.key: _value(flag, raw.get(flag.key)) for flag in FLAGS}


def _value(flag: Flag, raw: Raw | None) -> object:
    if raw is None:
        return flag.default
    values = [_parsed(flag.kind, raw.place, written) for written in raw.texts]
    return tuple(values) if flag.repeatable else values[-1]


def _parsed(kind: Kind, place: str, written: str | Section) -> object:
    if isinstance(written, Section):
        try:
            return read_tier(written.words)
        except PartError as error:
            raise WrongPartError(written.place_of(error.name), error) from error
    try:
        return kind.parse(written)
    except PartError as error:
        raise WrongPartError(place, error) from error
    except ValueError as error:
        raise InvalidValueError(place, written, kind.expected()) from error


class WrongPartError(InvalidValueError):
    """The InvalidValueError for one wrong part of a value (`PartError`)."""

    def __init__(self, place: str, error: PartError) -> None:
        PenstockError.__init__(self, f"{place} {error}")
        self.field = place


def resolve(raw: Mapping[str, Raw], model_path: str, served_name: str) -> Config:
    """The configuration of a server for the model at `model_path`, which clients call
    `served_name`. Raises InvalidValueError or PenstockError for settings that are wrong or do not
    fit together.
    """
    values = parse(raw)
    compute = _compute(values)
    engine = EngineConfig(
        ModelConfig(
            path=model_path,
            dtype=values["dtype"],
            quantization=values["quantization"],
            max_model_len=values["max_model_len"],
            seed=values["seed"],
            generation_config=values["generation_config"],
            override_generation_config=values["override_generation_config"],
            load_format=values["load_format"],
        ),
        CacheConfig(
            memory_bytes=values["kv_cache_memory_bytes"],
            block_size=values["block_size"],
            dtype=values["kv_cache_dtype"],
            prefix_caching=values["enable_prefix_caching"],
            events=values["kv_events_config"],
        ),
        _scheduler(values, compute.backend),
        compute,
        _parallel(values),
        resolve_tiers(values["kv_tier"], values["kv_chunk_tokens"], values["block_size"]),
        LogConfig(values["log_level"], values["log_format"], has_styles()),
    )
    return Config(engine, _server(values, served_name))


def _compute(values: Mapping[str, Any]) -> ComputeConfig:
    attention, device = values["attention_backend"], values["device"]
    if device == "auto":
        device = first_device() or "cpu"
    if attention != "triton" and not (device in DEVICES and DEVICES[device].flashinfer):
        raise PenstockError(
            f"--attention-backend {attention} computes on GPUs: give --device "
            f"{with_feature('flashinfer')} too, or leave it out"
        )
    return ComputeConfig(
        threads=values["threads"] or cpu_count(),
        isa=None if values["isa"] == "auto" else values["isa"],
        backend=device,
        attention=attention,
    )


def _scheduler(values: Mapping[str, Any], backend: str) -> SchedulerConfig:
    usual = ON_GPUS if backend in DEVICES else ON_CPUS
    seqs, batched = values["max_num_seqs"], values["max_num_batched_tokens"]
    if seqs and batched and batched < seqs:
        raise InvalidValueError(
            "--max-num-batched-tokens", batched, f"at least --max-num-seqs ({seqs})"
        )
    if not seqs:
        seqs = min(usual.sequences, batched or usual.sequences)
    return SchedulerConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=batched or max(usual.tokens, seqs),
        max_queue=values["max_num_queued_reqs"],
        policy=values["scheduling_policy"],
        max_wait=values["max_queue_wait"],
    )


def _parallel(values: Mapping[str, Any]) -> ParallelConfig:
    tensor, pipeline = values["tensor_parallel_size"], values["pipeline_parallel_size"]
    ranks = tensor * pipeline
    nodes = resolve_nodes(values)
    backend = values["distributed_executor_backend"] or ("inline" if ranks == 1 else "mp")
    if backend == "inline" and ranks > 1:
        raise InvalidValueError("--distributed-executor-backend", backend, f"mp for {ranks} ranks")
    if backend != "inline" and not values["engine_process"]:
        raise PenstockError(
            f"--no-engine-process does not go with --distributed-executor-backend {backend}: an "
            "engine that "
            "lost a rank is replaced, and this process cannot be. Leave one of them out"
        )
    of_tensors = ("ray_overlap_comm", "ray_communicator")
    chosen = [key for key in of_tensors if values[key]]
    if chosen and (backend != "ray" or values["ray_channel"] != "compiled-graph-tensors"):
        raise PenstockError(
            f"--{chosen[0].replace('_', '-')} needs --distributed-executor-backend ray and "
            "--ray-channel compiled-graph-tensors: it is for the communication of tensors, and the "
            "other channels carry none"
        )
    return ParallelConfig(
        tensor,
        pipeline,
        by_experts=values["enable_expert_parallel"],
        library_sums=values["disable_custom_all_reduce"],
        backend=backend,
        ray_address=values["ray_address"],
        ray_channel=values["ray_channel"],
        ray_overlap_comm=values["ray_overlap_comm"],
        ray_communicator=values["ray_communicator"],
        placement=values["placement"],
        **nodes,
    )


def _origins(given: tuple[str, ...]) -> tuple[str, ...]:
    """The origins given by --allowed-origins. Each value may be a JSON list, as in vLLM."""
    origins: list[str] = []
    for value in given:
        try:
            origins.extend(map(str, json.loads(value)) if value.startswith("[") else [value])
        except ValueError as error:
            raise InvalidValueError("--allowed-origins", value, "an origin or '*'") from error
    return tuple(origins)


def _server(values: Mapping[str, Any], served_name: str) -> ServerConfig:
    if (values["ssl_certfile"] is None) != (values["ssl_keyfile"] is None):
        raise PenstockError(CERTIFICATE_AND_KEY)
    if values["uds"] and values["ssl_certfile"]:
        raise PenstockError("--uds does not go with --ssl-certfile: leave one of them out")
    if values["skip_tokenizer_init"] and (values["tokenizer"] or values["chat_template"]):
        key = "--tokenizer" if values["tokenizer"] else "--chat-template"
        raise PenstockError(f"{key} does not go with --skip-tokenizer-init: leave one of them out")
    return ServerConfig(
        host=values["host"],
        port=values["port"],
        served_model_names=values["served_model_name"] or (served_name,),
        api_keys=values["api_key"],
        allowed_origins=_origins(values["allowed_origins"]),
        chat_template=values["chat_template"],
        engine_process=values["engine_process"],
        shutdown_timeout=values["shutdown_timeout"],
        engine_stall_timeout=values["engine_stall_timeout"],
        admin_api_key=values["admin_api_key"],
        max_request_bytes=values["max_request_bytes"],
        max_queue_wait=values["max_queue_wait"],
        uds=values["uds"],
        ssl_certfile=values["ssl_certfile"],
        ssl_keyfile=values["ssl_keyfile"],
        metrics_port=values["metrics_port"],
        replicas=values["replicas"],
        api_key_file=values["api_key_file"],
        ui=values["ui"],
        access_log=values["access_log"],
        otlp_traces_endpoint=values["otlp_traces_endpoint"],
        allow_special_tokens=values["allow_special_tokens"],
        trust_request_chat_template=values["trust_request_chat_template"],
        tool_call_parser=values["tool_call_parser"],
        reasoning_parser=values["reasoning_parser"],
        tokenizer=values["tokenizer"],
        skip_tokenizer_init=values["skip_tokenizer_init"],
        revision=values["revision"],
    )
