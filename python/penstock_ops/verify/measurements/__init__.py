"""Measurements of this machine, each a function that a process of its own runs and whose numbers it
prints as JSON: `python -m penstock_ops.verify.measurements NAME ARGUMENT...`.

A process, since calls that hang (dead NFS, DNS) end only with it.
"""
