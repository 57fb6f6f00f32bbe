"""File descriptor limit of a server process."""

from __future__ import annotations

import resource

OTHER_DESCRIPTORS = 64
"""Descriptors reserved for other uses than connections; at most half of all."""
MOST_CONNECTIONS = 16384


def raise_descriptors() -> int:
    """Raise the soft limit of descriptors to the hard one; returns the maximum connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most == resource.RLIM_INFINITY:
        most = MOST_CONNECTIONS
    return min(max(most - OTHER_DESCRIPTORS, most // 2), MOST_CONNECTIONS)
