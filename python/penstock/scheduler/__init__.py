"""Decides what each step computes. Has no executor, socket or text, and an injected clock."""

from penstock.scheduler.drafting import Drafter
from penstock.scheduler.limits import Limits
from penstock.scheduler.scheduler import Scheduler

__all__ = ["Drafter", "Limits", "Scheduler"]
