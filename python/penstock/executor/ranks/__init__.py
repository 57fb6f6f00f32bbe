"""Code shared by ranks and executors: layout of the ranks, messages, topology, shared memory,
streams.
"""

from penstock.executor.ranks.heartbeat_stream import HeartbeatStream
from penstock.executor.ranks.layout import RankLayout, RankTask
from penstock.executor.ranks.local_resources import LocalResources, SharedFiles, join_address
from penstock.executor.ranks.semaphores import forget_graph_semaphores
from penstock.executor.ranks.topology import CommResource, comm_resources, keyed, wire

__all__ = [
    "CommResource",
    "HeartbeatStream",
    "LocalResources",
    "RankLayout",
    "RankTask",
    "SharedFiles",
    "comm_resources",
    "forget_graph_semaphores",
    "join_address",
    "keyed",
    "wire",
]
