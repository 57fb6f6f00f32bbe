"""Finds models by name in the caches of this machine, and downloads missing files. A name is an
alias, a repository of the Hugging Face hub or a mirror, or a URL.
"""

from penstock.hub.aliases import ALIASES, OnHub, Packaged, canonical_alias
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
    "canonical_alias",
    "is_here",
    "locate",
    "locate_tokenizer",
    "locate_without_weights",
    "pull",
]
