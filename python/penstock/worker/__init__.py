"""One rank: a decoder with its weights and KV blocks. Computes the plans it is given and decides
nothing.
"""

from penstock.worker.decoder import create

__all__ = ["create"]
