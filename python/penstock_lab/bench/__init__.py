"""Benchmark of any OpenAI-compatible server: load, statistics, comparisons, reports.

`crates/lab/loadgen` moves the bytes; everything that a user scripts is here. Commands are modules
with `add_arguments` and `run`; `main` lists them.
"""
