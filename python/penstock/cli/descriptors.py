"""Descriptors of a process that serves connections."""

from __future__ import annotations

import resource

OTHER_DESCRIPTORS = 64
"""Descriptors of a server beside its connections; half of all where there are few."""
MOST_CONNECTIONS = 16384


def raise_descriptors() -> int:
    """Raise the soft limit of descriptors to the hard one; how many connections that allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most == resource.RLIM_INFINITY:
        most = MOST_CONNECTIONS
    return min(max(most - OTHER_DESCRIPTORS, most // 2), MOST_CONNECTIONS)
