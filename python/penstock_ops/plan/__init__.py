"""Capacity planning: how much memory a model needs on given hardware, how fast it would be, and
which deployment meets latency goals at the lowest cost.
"""
