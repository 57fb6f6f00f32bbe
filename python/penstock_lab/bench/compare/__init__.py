"""Several servers under the same loads on one machine, interleaved.

recipe             what starts a server, as TOML
servers            the command line's `--server`s
workloads          the command line's `--workload`s
processes          process trees: CPU time, memory, stopping and ending
schedule           the order of the runs: pure
server_under_test  one server that runs
comparison         all of them, and the files
summary            result files -> medians, spreads, ratios: pure, also used by the report
table              the summary as text
"""
