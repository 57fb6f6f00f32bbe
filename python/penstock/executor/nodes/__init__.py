"""Ranks on several hosts without Ray. Each host runs the same command; node 0 runs the engine.

rendezvous        node 0 waits for the other nodes and compares their configuration
rank_assignment   ranks of each node
connect           the executor, in the engine
world             all ranks: loss detection and shutdown
agent             process of a node other than 0: connects to node 0 until it is stopped
agent_session     runs that node's ranks for one engine
messages          protocol between engine and agents
"""

from penstock.executor.nodes.agent import NodeAgent
from penstock.executor.nodes.connect import connect_nodes

__all__ = ["NodeAgent", "connect_nodes"]
