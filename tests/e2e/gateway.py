"""`penstock gateway` as a process, watched from outside."""

from __future__ import annotations

from collections.abc import Sequence

from tests.e2e.server import Command


class Gateway(Command):
    """`penstock gateway --port 0 FLAGS`."""

    def __init__(self, *flags: str, prefix: Sequence[str] = (), addresses: int = 1) -> None:
        super().__init__("gateway", "--port", "0", *flags, prefix=prefix, addresses=addresses)


class Picker(Gateway):
    """One that an Envoy asks, too."""

    def __init__(self, *flags: str, port: int = 0) -> None:
        super().__init__("--ext-proc", f"127.0.0.1:{port}", *flags, addresses=2)

    @property
    def picker_url(self) -> str:
        return self.urls[1]
