"""Ranks as processes of this host, connected by rings in shared memory."""

from __future__ import annotations

import json
import secrets
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from penstock.config import EngineConfig
from penstock.core.progress import Report, silent
from penstock.executor.processes import Processes
from penstock.executor.rank_group import RanksExecutor
from penstock.executor.ranks import LocalResources, RankLayout, comm_resources, keyed, wire
from penstock.executor.transport import Transport, open_rings


def connect_processes(
    layout: RankLayout, config: EngineConfig, directory: Path, report: Report = silent
) -> RanksExecutor:
    """Start the ranks; returns when all have loaded. Raises PenstockError with the reason of the
    first rank that failed.

    `directory` holds the files of the rings and must be on a tmpfs (in memory).
    """
    local, cleanup = LocalResources(directory), ExitStack()
    try:
        transport = Transport()
        resources = comm_resources(layout)
        wirings = wire(layout, resources, local.make([each.request for each in resources]))
        key = secrets.token_bytes(32)
        tasks = layout.tasks(config.to_json(), [keyed(wiring, key) for wiring in wirings])
        ends = open_rings(layout, local.files, transport)
        jobs = [
            json.dumps({"task": asdict(task), **end}) for task, end in zip(tasks, ends, strict=True)
        ]
        processes = Processes(jobs, local.files.descriptors, transport.on_exit)
        cleanup.callback(processes.end)
        executor = RanksExecutor(layout, transport, processes, cleanup, report=report)
        executor.await_loaded()
        return executor
    except BaseException:
        cleanup.close()
        raise
    finally:
        local.close()
