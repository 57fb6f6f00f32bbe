"""Capacity planning: what a model needs on given hardware, and how fast it would be."""
