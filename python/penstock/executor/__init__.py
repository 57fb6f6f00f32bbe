"""Where steps run. The engine asks an `Executor`; which kind it is was decided once, at start.

inline  one rank in the engine's process (`inline.py`) mp      each rank a process of this host
(`mp.py`), over shared memory; with --nnodes of several hosts (`nodes/`), over streams between them
ray     each rank an actor of a Ray cluster (`ray/`), over shared memory, streams, or Ray's own
channels

`ranks.py`, `wiring.py` and `rings.py` are what all but the first have in common: the ranks as one,
what joins them, and what carries plans and answers. Only the kind that is used is imported, by the
engine at its start.
"""

from penstock.executor.contract import Executor, Ticket, WorkersLostError

__all__ = ["Executor", "Ticket", "WorkersLostError"]
