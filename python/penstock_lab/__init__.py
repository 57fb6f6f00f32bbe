"""Measurement and simulation: load, statistics, reports, modelled engines, routing replays."""
