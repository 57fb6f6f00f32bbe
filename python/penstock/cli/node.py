"""`penstock serve --node-rank K`, K > 0: runs ranks for the engine of node 0, without an API
server.
"""

from __future__ import annotations

import signal

from penstock.config import (
    EngineConfig,
    cluster_key,
    configure_log,
    heartbeat_directory,
    shared_memory_directory,
)
from penstock.engine.config_fingerprint import config_fingerprint
from penstock.executor.nodes import NodeAgent
from penstock.model import ModelInfo


def serve_node(config: EngineConfig, info: ModelInfo) -> int:
    """Run until SIGTERM, SIGINT or SIGHUP; returns the exit status. Raises PenstockError if node 0
    refuses this node.
    """
    configure_log(config.log, "penstock")
    key = cluster_key(config.parallel.token_file)
    fingerprint = config_fingerprint(config, info)
    directory = shared_memory_directory()
    agent = NodeAgent(config, directory, key, fingerprint, heartbeat_directory())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # The parent ignores it (nohup).
            signal.signal(number, lambda *_: agent.stop())
    agent.run()
    return 0
