"""Executors send step plans to one or more workers (ranks) and return their results.
engine/startup.py chooses one of them:

inline  one rank in the engine's process (`inline.py`)
mp      each rank a process of this host (`mp.py`), over rings in shared memory; on several hosts
        with --nnodes (`nodes/`), over streams between them
ray     each rank an actor of a Ray cluster (`ray/`), over rings, streams, or Ray's own channels

All but `inline` are a `RanksExecutor` (`rank_group.py`, on `connection.py`) over a `Transport`.
Only the module of the chosen executor is imported.
"""

from penstock.backends import StepFuture
from penstock.executor.contract import Executor, TransferExecutor, WorkersLostError

__all__ = ["Executor", "StepFuture", "TransferExecutor", "WorkersLostError"]
