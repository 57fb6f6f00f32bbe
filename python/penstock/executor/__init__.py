"""Where steps run. The engine asks an `Executor`; which kind it is was decided once, at start.

inline  one rank in the engine's process (`inline.py`)
mp      each rank a process of this host (`mp.py`), over shared memory
"""

from penstock.executor.contract import Executor, Ticket, WorkersLostError
from penstock.executor.inline import InlineExecutor
from penstock.executor.mp import MultiprocExecutor

__all__ = ["Executor", "InlineExecutor", "MultiprocExecutor", "Ticket", "WorkersLostError"]
