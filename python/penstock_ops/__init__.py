"""Capacity plans, and deployment manifests made from them."""
