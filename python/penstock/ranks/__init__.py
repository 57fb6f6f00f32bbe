"""How ranks and their executor reach each other: memory of one host, lines between hosts."""

from penstock.ranks.line import Line
from penstock.ranks.parts import LocalParts, join_address
from penstock.ranks.semaphores import forget_graph_semaphores
from penstock.ranks.shared import SharedFiles

__all__ = ["Line", "LocalParts", "SharedFiles", "forget_graph_semaphores", "join_address"]
