"""The engine: accepts requests from the API server, schedules them, runs steps on the ranks, and
sends outputs back. Runs as `python -m penstock.engine`.
"""

from penstock.engine.in_flight import InFlight
from penstock.engine.loop import Engine
from penstock.engine.startup import StageSink, Started, start

__all__ = ["Engine", "InFlight", "StageSink", "Started", "start"]
