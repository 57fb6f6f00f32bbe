"""Benchmark of any OpenAI-compatible server: load, statistics, comparisons, reports.

`crates/lab/loadgen` sends the requests and receives the answers; all other logic is here. Each
command is a module with `add_arguments` and `run`; `main` lists them.
"""
