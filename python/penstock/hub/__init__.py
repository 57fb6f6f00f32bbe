"""Models by name: aliases, repositories of the Hugging Face hub and its mirrors, addresses. Finds
their files in the caches of this machine, and downloads what is missing.
"""

from penstock.hub.aliases import ALIASES, OnHub, Packaged
from penstock.hub.errors import HubError
from penstock.hub.locate import (
    Located,
    is_here,
    locate,
    locate_tokenizer,
    locate_without_weights,
    pull,
)

__all__ = [
    "ALIASES",
    "HubError",
    "Located",
    "OnHub",
    "Packaged",
    "is_here",
    "locate",
    "locate_tokenizer",
    "locate_without_weights",
    "pull",
]
