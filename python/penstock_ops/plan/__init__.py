"""Sizing before serving: what a model needs on some hardware, and how fast it would be."""
