"""The error for checkpoints that cannot be served."""

from pathlib import Path

from penstock.core.errors import PenstockError, shortened


class ModelError(PenstockError):
    """A checkpoint that cannot be served. The message names the file, the key, its value, and the
    supported values.
    """

    def __init__(self, file: Path, problem: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.file = file


def unsupported(file: Path, key: str, value: object, supported: str) -> ModelError:
    """Error for `value` at `key`. `supported` completes the text "supported: ..."."""
    shown = shortened(repr(value), 120)
    return ModelError(file, f"{key} = {shown} is not supported; supported: {supported}")
