"""Steps on a device: its stream, CUDA graphs, and results."""
