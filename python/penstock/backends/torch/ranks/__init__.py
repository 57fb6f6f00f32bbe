"""Communication with other ranks: collectives within a stage, activations between stages."""
