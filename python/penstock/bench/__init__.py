"""What a server does under load: requests and traces, the load they make, statistics, comparisons,
reports.

The bytes are handled by `crates/loadgen`; everything a user scripts is here. Commands are modules
with `add_arguments` and `run`; `main` lists them.
"""
