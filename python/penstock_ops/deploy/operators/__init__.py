"""NVIDIA's network and GPU operators: versions that fit together, and values for Helm."""
