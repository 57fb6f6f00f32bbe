"""Hosts whose links all have one rate, so that a busy machine is not mistaken for a slow link."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.namespaces import Hosts
from tests.verify.between import links

HOSTS = 4


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(HOSTS) as made:
        for at in range(HOSTS):
            links.shape(made, at, "200mbit")
        yield made
