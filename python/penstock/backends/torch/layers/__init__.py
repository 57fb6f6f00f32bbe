"""The forward pass of one step. Start with `model.py`."""
