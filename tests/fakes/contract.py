"""How a fake says that it was not used as its interface demands."""

from __future__ import annotations


class ContractBrokenError(AssertionError):
    pass


def require(condition: bool, fault: str) -> None:
    if not condition:
        raise ContractBrokenError(fault)
