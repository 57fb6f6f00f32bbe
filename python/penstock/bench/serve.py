"""`penstock bench serve`: load on any OpenAI-compatible server, like `vllm bench serve`."""

from __future__ import annotations

import argparse

from penstock.bench import run_single
from penstock.bench.measure import add_serve_arguments

run = run_single.run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_serve_arguments(parser)
    run_single.add_arguments(parser)
