"""Root of Penstock's errors. Each message names the fault, its place and the remedy."""


class PenstockError(Exception):
    """An error that the user can act on. The command line prints it without a traceback."""


class DeviceLostError(PenstockError):
    """This process has lost its device and cannot compute any further step."""


class InvalidValueError(PenstockError, ValueError):
    """A field's value is out of range. `field` is the name as the caller spells it."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field} is {value!r}, expected {expected}")
        self.field = field


def shortened(text: str, most: int = 40) -> str:
    """`text` for an error message, truncated to `most` characters, "..." included."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


class CodecError(PenstockError):
    """Malformed bytes, or a message that cannot be encoded."""
