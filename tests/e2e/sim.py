"""`penstock sim` as a process, watched from outside."""

from __future__ import annotations

import httpx

from tests.e2e.server import Command
from tests.limits import HANG


class Sim(Command):
    """`penstock sim FLAGS`, with one address for each replica."""

    READY = "listening on "

    def __init__(self, *flags: str, replicas: int = 1) -> None:
        super().__init__("sim", "--replicas", str(replicas), *flags, addresses=replicas)

    def client_of(self, replica: int) -> httpx.Client:
        return httpx.Client(base_url=self.urls[replica], timeout=HANG)
