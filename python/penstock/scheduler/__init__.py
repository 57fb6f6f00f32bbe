"""Decides what each step computes. Knows no executor, no socket, no text, no clock but an injected
one.
"""

from penstock.scheduler.scheduler import Limits, Scheduler

__all__ = ["Limits", "Scheduler"]
