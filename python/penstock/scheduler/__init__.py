"""The scheduler: decides which tokens each engine step computes. It uses no executor, socket or
text, and its clock is a parameter, so it can run in simulations.
"""

from penstock.scheduler.drafting import Drafter
from penstock.scheduler.limits import Limits
from penstock.scheduler.scheduler import Scheduler

__all__ = ["Drafter", "Limits", "Scheduler"]
