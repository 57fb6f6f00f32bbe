"""`penstock serve --node-rank K`, K above 0: no front door and no engine, but stages for those of
node 0.
"""

from __future__ import annotations

import logging
import signal
import sys

from penstock.config import EngineConfig, cluster_key, shared_memory_directory
from penstock.engine.card import node_card
from penstock.engine.startup import WORKER
from penstock.executor.nodes import NodeAgent
from penstock.model import ModelInfo


def serve_node(config: EngineConfig, info: ModelInfo) -> int:
    """Until SIGTERM or Ctrl-C; returns the exit status. PenstockError when node 0 refuses this
    node.
    """
    logging.basicConfig(format="penstock: %(message)s", stream=sys.stderr, level=logging.INFO)
    key = cluster_key(config.parallel.token_file)
    agent = NodeAgent(WORKER, config, shared_memory_directory(), key, node_card(config, info))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    agent.run()
    return 0
