"""What ranks and executors share: layout, messages, topology, shared memory, streams."""

from penstock.ranks.heartbeat_stream import HeartbeatStream
from penstock.ranks.layout import RankLayout, RankTask
from penstock.ranks.local_resources import LocalResources, SharedFiles, join_address
from penstock.ranks.semaphores import forget_graph_semaphores
from penstock.ranks.topology import CommResource, comm_resources, keyed, wire

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
