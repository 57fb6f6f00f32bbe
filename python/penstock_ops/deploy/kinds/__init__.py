"""Kinds of objects: one function of the facts for each kind, in its own file."""
