"""Several servers under the same load on one machine: who takes part, whose turn it is, and what
came out.

recipe      what starts a server, as TOML
lineup      the command line's `--server`s
workloads   the command line's `--workload`s
processes   process trees: CPU time, memory, stopping and ending
schedule    whose turn it is: pure
contender   one server that runs
comparison  all of them, and the files
summary     result files -> medians, spreads, ratios: pure, also used by the report
table       the summary as text
"""
