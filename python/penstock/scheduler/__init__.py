"""The scheduler: decides which tokens each engine step computes. It has no dependency on executors,
sockets or text, and its clock is a parameter, so simulations can run it.
"""

from penstock.scheduler.drafting import Drafter
from penstock.scheduler.limits import Limits
from penstock.scheduler.scheduler import Scheduler

__all__ = ["Drafter", "Limits", "Scheduler"]
