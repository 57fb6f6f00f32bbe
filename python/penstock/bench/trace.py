"""`penstock bench trace FILE`: the arrivals and lengths of a recorded service, at any speed."""

from __future__ import annotations

import argparse

from penstock.bench import once
from penstock.bench.workload import add_trace_arguments

run = once.run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trace_arguments(parser)
    once.add_arguments(parser)
