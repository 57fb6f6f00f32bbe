"""One step on a device: its stream of work, its CUDA graphs, its result."""
