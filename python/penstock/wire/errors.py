"""What goes wrong on the wire."""

from penstock.core import PenstockError


class FrameError(PenstockError):
    """Bytes that are not a frame. `offset` counts from the first byte of the frame's body to the
    field.
    """

    def __init__(self, frame: str, field: str, offset: int, problem: str) -> None:
        super().__init__(f"{frame} frame, field {field} at byte {offset}: {problem}")
        self.frame = frame
        self.field = field
        self.offset = offset


class ConnectionClosed(PenstockError):  # noqa: N818 - an event of every normal end
    """The front door is gone. The engine has nobody to work for and exits."""
