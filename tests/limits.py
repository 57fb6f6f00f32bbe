"""The time limit of what must not hang.

A machine that runs tests is busy: any process may stand still for seconds. So tests wait for
events, with this limit; a shorter time is one that the test wants to run out.
"""

from __future__ import annotations

HANG = 300.0
"""Seconds after which something is stuck: half of pytest's limit for a test, so that a test says
what it waited for.
"""
