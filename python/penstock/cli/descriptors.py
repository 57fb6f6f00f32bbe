"""The limit on a server process's file descriptors."""

from __future__ import annotations

import resource

OTHER_DESCRIPTORS = 64
"""Number of descriptors reserved for uses other than connections, but at most half of all
descriptors.
"""
MOST_CONNECTIONS = 16384


def raise_descriptors() -> int:
    """Raise the soft limit of descriptors to the hard limit; returns the maximum number of
    connections that the server may accept.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most == resource.RLIM_INFINITY:
        most = MOST_CONNECTIONS
    return min(max(most - OTHER_DESCRIPTORS, most // 2), MOST_CONNECTIONS)
