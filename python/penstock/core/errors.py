"""Base classes of Penstock's errors. Each message names the fault, its place and the remedy."""


class PenstockError(Exception):
    """An error that the user can act on. The command line prints it without a traceback."""


class DeviceLostError(PenstockError):
    """The GPU failed in such a way that this process cannot compute any further step."""


class InvalidValueError(PenstockError, ValueError):
    """The value of a field or flag is not accepted. `field` is its name as the user spells it."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field} is {value!r}, expected {expected}")
        self.field = field


def shortened(text: str, most: int = 40) -> str:
    """`text` for an error message, truncated to `most` characters, "..." included."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


class CodecError(PenstockError):
    """Bytes that are no valid message, or a message that cannot be encoded."""
