"""Traces of real services: when requests came, how long they were, what they had in common."""

from penstock.bench.traces.read import FORMATS, Arrival, Trace, read
from penstock.bench.traces.replay import Replay, ReplayOptions, replay

__all__ = ["FORMATS", "Arrival", "Replay", "ReplayOptions", "Trace", "read", "replay"]
