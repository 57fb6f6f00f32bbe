"""The forward pass of one step: `model.py`, read downward."""
