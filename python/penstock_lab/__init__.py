"""Measurement of servers: load, statistics, comparisons, reports."""
