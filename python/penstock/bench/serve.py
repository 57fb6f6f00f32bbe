"""`penstock bench serve`: load on any OpenAI-compatible server, in the manner of `vllm bench
serve`.
"""

from __future__ import annotations

import argparse

from penstock.bench import once
from penstock.bench.workload import add_serve_arguments

run = once.run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_serve_arguments(parser)
    once.add_arguments(parser)
