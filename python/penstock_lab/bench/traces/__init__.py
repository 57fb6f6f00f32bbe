"""Traces of real services: arrival times, lengths, shared prefixes."""

from penstock_lab.bench.traces.read import FORMATS, Arrival, Trace, read
from penstock_lab.bench.traces.replay import Replay, ReplayOptions, replay

__all__ = ["FORMATS", "Arrival", "Replay", "ReplayOptions", "Trace", "read", "replay"]
