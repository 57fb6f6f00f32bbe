"""Weights of one rank: read from a checkpoint, cut, fused, and copied to the device."""
