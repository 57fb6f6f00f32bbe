"""Base classes of Penstock's errors. Each message names the fault, its place and the remedy."""

import difflib
from collections.abc import Iterable


class PenstockError(Exception):
    """An error that the user can act on. The command line prints it without a traceback."""


class DeviceLostError(PenstockError):
    """A failure of the GPU after which this process cannot compute any further step."""


class InvalidValueError(PenstockError, ValueError):
    """The value of a field or flag is not accepted. `field` is its name as the user spells it."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field} is {shortened(repr(value), 200)}, expected {expected}")
        self.field = field


def did_you_mean(word: str, known: Iterable[str], most: int = 1) -> str:
    """`; did you mean X?` with up to `most` similar known names, the most similar first; case is
    ignored. Empty if no name is similar.
    """
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), names, n=most, cutoff=0.6)
    return f"; did you mean {' or '.join(names[each] for each in close)}?" if close else ""


def shortened(text: str, most: int = 40) -> str:
    """`text` for an error message, truncated to `most` characters, "..." included."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


class CodecError(PenstockError):
    """Bytes that are not a valid message, or a message that cannot be encoded."""
