"""`penstock serve`: runs the API server, which is configured from settings and the model's
metadata.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

from penstock import __version__
from penstock.cli.arguments import settings
from penstock.cli.descriptors import raise_descriptors
from penstock.config import (
    Config,
    EngineConfig,
    cluster_key,
    gather,
    log,
    model_named,
    notify_socket,
    resolve,
    runtime_directory,
)
from penstock.config.machine import cpu_count
from penstock.core import InvalidValueError, PenstockError
from penstock.engine.startup import read_model
from penstock.hub import Located, locate, locate_tokenizer, locate_without_weights
from penstock.model import GenerationDefaults, ModelInfo, sampling_defaults
from penstock.model.stand_in_tokenizer import tokenizer_of

ENGINE = [sys.executable, "-P", "-m", "penstock.engine", "--socket", "{socket}"]
"""Command that starts the engine. With `-P`, a directory named penstock in the working directory
cannot shadow the package.
"""
SOCKET_NAME = "engine.sock"
SOCKET_WAIT = 30.0


def serve(parsed: argparse.Namespace) -> int:
    raw = gather(settings(parsed), parsed.config)
    # Resolve the settings before the model is located, so that wrong values are reported first.
    first = resolve(raw, "", "")
    find = locate_without_weights if first.engine.model.dummy else locate
    located = find(model_named(raw, said_model(parsed)), first.server.revision)
    config = resolve(raw, str(located.path), located.served_name)
    if config.server.replicas > 1:
        from penstock.cli.replicas import serve_replicas

        return serve_replicas(parsed, model_named(raw, said_model(parsed)), config)
    info = model_info(config.engine, located)
    if config.engine.parallel.nnodes > 1:
        cluster_key(config.engine.parallel.token_file)  # Fail here, not in the engine.
    if config.engine.parallel.node_rank:
        from penstock.cli.node import serve_node

        return serve_node(config.engine, info)
    warn(info, config)
    with tokenizer_of(
        tokenizer_source(config),
        info.spec.vocab,
        dummy=config.engine.model.dummy,
        skipped=config.server.skip_tokenizer_init,
    ) as tokenizer:
        return _serve(config, info, str(tokenizer))


def _serve(config: Config, info: ModelInfo, tokenizer: str) -> int:
    """Run the server with its engine, which is a process or a thread."""
    runtime = runtime_directory()
    if config.server.engine_process:
        process: dict[str, object] = {
            "argv": ENGINE,
            "input": config.engine.to_json(),
            "socket_dir": None,
            "runtime_dir": runtime,
        }
        return run(front_door(config, info, tokenizer, process, raise_descriptors()))
    with tempfile.TemporaryDirectory(prefix=f"penstock-{os.getpid()}-", dir=runtime) as directory:
        engine = threading.Thread(
            target=_engine_thread, args=(directory, config.engine), daemon=True
        )
        engine.start()
        process = {"argv": None, "socket_dir": directory}
        return run(front_door(config, info, tokenizer, process, raise_descriptors()))


def said_model(parsed: argparse.Namespace) -> str | None:
    """The model named on the command line: MODEL, or --model as in older scripts; None if neither
    is given.
    """
    positional: str | None = parsed.model
    flag: str | None = parsed.model_flag
    if positional is not None and flag not in (None, positional):
        raise InvalidValueError("--model", flag, f"nothing beside the MODEL {positional}")
    return flag if positional is None else positional


def model_info(config: EngineConfig, located: Located) -> ModelInfo:
    """Metadata of the model. For an alias, they include the sampling defaults of the model card."""
    info = read_model(config)
    return replace(info, generation=located.sampling) if located.sampling else info


def run(configuration: dict[str, object]) -> int:
    """Run the API server until it has drained; returns its exit status."""
    from penstock import _native

    # The API server handles Ctrl-C itself. Python's handler would raise KeyboardInterrupt after a
    # clean shutdown.
    own = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return _native.front_door(json.dumps(configuration))
    except RuntimeError as error:
        raise PenstockError(str(error)) from error
    finally:
        signal.signal(signal.SIGINT, own)


def front_door(
    config: Config, info: ModelInfo, tokenizer: str, engine: dict[str, object], connections: int
) -> dict[str, object]:
    """Configuration of the API server (`Config` in crates/server/server/src/config.rs).
    `tokenizer`: path of the tokenizer; `engine`: how it starts the engine; `connections`: maximum
    number of connections.
    """
    server, generation = config.server, chosen_defaults(config.engine, info)
    defaults: dict[str, object] = {
        "temperature": generation.temperature,
        "top_k": generation.top_k,
        "top_p": generation.top_p,
        "min_p": generation.min_p,
        "repetition_penalty": generation.repetition_penalty,
    }
    if config.engine.model.seed is not None:
        defaults["seed"] = config.engine.model.seed
    return {
        "host": server.host,
        "port": server.port,
        "served_model_names": list(server.served_model_names),
        "model_path": tokenizer,
        "vocab_size": info.spec.vocab,
        "skip_tokenizer_init": server.skip_tokenizer_init,
        "chat_template": server.chat_template,
        "uds": server.uds,
        "tls": server.ssl_certfile
        and {"certificate": server.ssl_certfile, "key": server.ssl_keyfile},
        "metrics_port": server.metrics_port,
        "allow_special_tokens": server.allow_special_tokens,
        "trust_request_chat_template": server.trust_request_chat_template,
        "job_command": [sys.executable, "-m", "penstock.cli.job"],
        "tool_call_parser": server.tool_call_parser,
        "reasoning_parser": server.reasoning_parser,
        "api_keys": list(server.api_keys),
        "api_key_file": server.api_key_file,
        "allowed_origins": list(server.allowed_origins),
        "admin_api_key": server.admin_api_key,
        "generation_defaults": defaults,
        "engine": engine,
        "max_queue": config.engine.scheduler.max_queue,
        "max_queue_wait_s": server.max_queue_wait or None,
        "limits": {
            "max_body_bytes": server.max_request_bytes,
            "max_connections": connections,
        },
        "drain_timeout_s": server.shutdown_timeout,
        "stall_timeout_s": server.engine_stall_timeout,
        "ranks": config.engine.parallel.ranks,
        "max_model_len": config.engine.model.max_model_len,
        "log": asdict(config.engine.log),
        "ui": server.ui,
        "access_log": server.access_log,
        "otlp_traces_endpoint": server.otlp_traces_endpoint,
        "notify_socket": notify_socket(),
        "version": __version__,
    }


def tokenizer_source(config: Config) -> Path:
    named = config.server.tokenizer
    return locate_tokenizer(named).path if named else Path(config.engine.model.path)


def chosen_defaults(config: EngineConfig, info: ModelInfo) -> GenerationDefaults:
    model = config.model
    return sampling_defaults(
        info.generation, model.generation_config, model.override_generation_config
    )


def warn(info: ModelInfo, config: Config) -> None:
    template = config.server.chat_template
    if template and not Path(template).is_file():
        raise PenstockError(f"--chat-template {template}: no such file")
    warnings = [
        f"the model asks for {key}={value}, which is not applied"
        for key, value in chosen_defaults(config.engine, info).not_applied
    ]
    threads, cpus = config.engine.compute.threads, cpu_count()
    if threads > cpus:
        warnings.append(f"--threads {threads} on {cpus} CPUs: steps wait for threads that wait")
    for warning in warnings:
        log.warn(warning)


def _engine_thread(directory: str, config: EngineConfig) -> None:
    from penstock.engine.process import serve as serve_engine

    socket = Path(directory) / SOCKET_NAME
    deadline = time.monotonic() + SOCKET_WAIT
    while not socket.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    serve_engine(str(socket), config)
