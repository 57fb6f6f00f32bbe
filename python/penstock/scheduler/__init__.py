"""The scheduler: plans each step. No executor, socket or text; the clock is injected."""

from penstock.scheduler.drafting import Drafter
from penstock.scheduler.limits import Limits
from penstock.scheduler.scheduler import Scheduler

__all__ = ["Drafter", "Limits", "Scheduler"]
