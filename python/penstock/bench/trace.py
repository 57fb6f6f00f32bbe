"""`penstock bench trace FILE`: the arrivals and lengths of a recorded service, at any speed."""

from __future__ import annotations

import argparse

from penstock.bench import run_single
from penstock.bench.measure import add_trace_arguments

run = run_single.run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trace_arguments(parser)
    run_single.add_arguments(parser)
