"""`penstock gateway` as a process, watched from outside."""

from __future__ import annotations

from tests.e2e.server import Command


class Gateway(Command):
    """`penstock gateway --port 0 FLAGS`."""

    def __init__(self, *flags: str) -> None:
        super().__init__("gateway", "--port", "0", *flags)
