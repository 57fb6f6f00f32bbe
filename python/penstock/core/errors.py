"""Root of Penstock's own errors: each message names what was wrong, where, and what to do."""


class PenstockError(Exception):
    """An error that a user can act on. The command line prints its message without a traceback."""


class DeviceLostError(PenstockError):
    """The device of this process is lost to it: no later step can be computed."""


class InvalidValueError(PenstockError, ValueError):
    """A field holds a value outside its range. `field` names it as the caller spelled it."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field} is {value!r}, expected {expected}")
        self.field = field


def shortened(text: str, most: int = 40) -> str:
    """`text` for an error message, cut to `most` characters with "..." at the end."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


class CodecError(PenstockError):
    """Malformed bytes, or a message that cannot be encoded."""
