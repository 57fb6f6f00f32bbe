"""Executors: carry plans to one or more workers. The kind is chosen at start, in engine/startup.py.

inline  one rank in the engine's process (`inline.py`)
mp      each rank a process of this host (`mp.py`), over rings of shared memory; of several hosts
        with --nnodes (`nodes/`), over streams between them
ray     each rank an actor of a Ray cluster (`ray/`), over rings, streams, or Ray's own channels

All but the first are a `RanksExecutor` (`ranks.py`, on `connection.py`) over a `Transport`. Only
the kind that is used is imported.
"""

from penstock.backends import StepFuture
from penstock.executor.contract import Executor, TransferExecutor, WorkersLostError

__all__ = ["Executor", "StepFuture", "TransferExecutor", "WorkersLostError"]
