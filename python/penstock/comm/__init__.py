"""How ranks and their executor reach each other: memory of one host, lines between hosts."""

from penstock.comm.line import Line
from penstock.comm.parts import LocalParts, join_address
from penstock.comm.semaphores import forget_graph_semaphores
from penstock.comm.shared import SharedFiles

__all__ = ["Line", "LocalParts", "SharedFiles", "forget_graph_semaphores", "join_address"]
