"""`penstock bench trace FILE`: replays the arrival times and lengths recorded from a real service,
at any speed.
"""

from __future__ import annotations

import argparse

from penstock_lab.bench import serve
from penstock_lab.bench.measure import add_trace_arguments

run = serve.run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trace_arguments(parser)
    serve.add_single(parser)
