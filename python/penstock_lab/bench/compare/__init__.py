"""Compares servers under the same loads on one machine, interleaved.

recipe             command of a server, as TOML
servers            the `--server`s of the command line
workloads          the `--workload`s of the command line
processes          process trees: CPU time, memory, suspension, termination
schedule           order of the runs, without side effects
server_under_test  one running server
comparison         all runs, and the files
summary            result files -> medians, spreads, ratios; used by the report, too
table              the summary as text
"""
