"""The engine as a process (or thread) behind a socket of the API server: HELLO frame, start-up
stages, READY frame, loop, shutdown.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from logging import INFO

from penstock.config import EngineConfig, configure_log
from penstock.core import PenstockError
from penstock.engine.frontend import Connection, ConnectionClosed, Fatal, Hello, Ready, Stage
from penstock.engine.load_report import on_terminal, start_reported
from penstock.engine.loop import Engine
from penstock.engine.startup import Started
from penstock.engine.tiers import kinds

log = logging.getLogger("penstock.engine")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.engine",
        description="an engine behind a socket; JSON of penstock.config.EngineConfig is its "
        "standard input",
    )
    parser.add_argument("--socket", required=True, help="unix socket of the API server")
    parsed = parser.parse_args(arguments)
    # Signals such as Ctrl-C reach whole process groups. The engine ignores them, because the API
    # server decides when the engine ends.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    config = EngineConfig.from_json(sys.stdin.read())
    configure_log(config.log)
    return serve(parsed.socket, config)


def serve(socket: str, config: EngineConfig) -> int:
    """Serve the API server that listens at `socket`, until SHUTDOWN or the end of the connection.
    Returns the exit status.
    """
    try:
        connection = Connection(socket)
    except ConnectionClosed as error:
        log.error("%s", error)
        return 1
    try:
        return _live(connection, config)
    except ConnectionClosed as error:
        log.warning("%s", error)
        return 0
    finally:
        connection.close()


def _live(connection: Connection, config: EngineConfig) -> int:
    try:
        connection.send(Hello(os.getpid()))
        started = _start(connection, config)
        try:
            _quieten_collector()
            connection.send(ready(started))
            rooms = (started.scheduler, started.executor, started.admin)
            Engine(connection, *rooms, pauses=started.facts.pauses).run()
        finally:
            started.close()
    except ConnectionClosed:
        raise
    except PenstockError as error:
        connection.send(Fatal(str(error)))
        return 1
    except Exception as error:
        log.error("the engine cannot go on", exc_info=error)
        connection.send(Fatal(f"{type(error).__name__}: {error}"))
        return 1
    return 0


def _start(connection: Connection, config: EngineConfig) -> Started:
    # Overwrite progress in place only in a text log; a JSON log needs whole lines.
    terminal = on_terminal() and config.log.format == "text" and log.isEnabledFor(INFO)
    return start_reported(config, lambda *stage: connection.send(Stage(*stage)), terminal)


def ready(started: Started) -> Ready:
    facts, limits, kv = started.facts, started.scheduler.limits, started.kv
    return Ready(
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_queue=limits.max_queue,
        block_size=started.config.cache.block_size,
        num_blocks=kv.num_blocks,
        kv_bytes=kv.bytes,
        vocab_size=limits.vocab_size,
        eos_token_ids=sorted(limits.eos_token_ids),
        cache_identity=started.cache_identity,
        numerics=str(facts.numerics),
        device=facts.device,
        threads=facts.threads,
        kv_tiers=kinds(started.config.tiers),
        pooler=started.info.pooler,
    )


def _quieten_collector() -> None:
    """Exempt the objects that exist now from garbage collection, and leave collection to the
    loop.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
