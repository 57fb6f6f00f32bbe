"""Benchmark of any OpenAI-compatible server: load, statistics, comparisons, reports.

`crates/lab/loadgen` sends and receives; the logic is here. Commands are modules with
`add_arguments` and `run`, listed in `main`.
"""
