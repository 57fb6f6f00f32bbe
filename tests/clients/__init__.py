"""Clients that others wrote, unmodified, against a server with the default model."""
