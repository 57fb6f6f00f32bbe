"""Benchmarks and simulation: load generation, statistics, reports, simulated engines, and replays
of routing decisions.
"""
