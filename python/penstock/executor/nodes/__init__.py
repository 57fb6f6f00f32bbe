"""Ranks on several hosts without Ray: each host runs the same command, node 0 the engine.

messages  what the engine and the nodes say to each other
places    which node holds which stages
muster    node 0 waits for the others, and knows who may join
crew      all ranks as one: their losses, their end
executor  all of it together, in the engine
agent     a node other than 0: calls node 0, again and again
visit     what such a node does for one engine: its ranks, from their start to their end
"""

from penstock.executor.nodes.agent import NodeAgent
from penstock.executor.nodes.executor import NodesExecutor

__all__ = ["NodeAgent", "NodesExecutor"]
