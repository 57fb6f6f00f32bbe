"""Header of a GGUF file, as returned by the native reader."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from penstock.model.errors import ModelError
from penstock.model.fields import Fields

TensorRow = tuple[str, str, Sequence[int]]
"""A tensor in the header: name, element type, and shape with the outermost dimension first."""
GgufReader = Callable[[str], Mapping[str, object]]
"""Function that reads the header of a GGUF file: `{"metadata": {key: value}, "tensors":
[TensorRow], "ends": [token]}`. "ends" is optional. Arrays of more than 64 items are shortened to
`{"len": n, "type": t}`.
"""


@dataclass(frozen=True)
class GgufHeader:
    file: Path
    metadata: Mapping[str, object]
    shapes: Mapping[str, tuple[int, ...]]
    """Shape of each tensor by name, outermost dimension first."""
    ends: tuple[int, ...] = ()
    """Ids of the tokens whose names mark the end of an answer."""
    served: int | None = None
    """Maximum length in tokens that the user requests; None: not set."""

    def fields(self, prefix: str = "") -> Fields:
        return Fields(self.file, self.metadata, prefix, served=self.served)

    def embedding_rows(self) -> int:
        shape = self.shapes.get("token_embd.weight", ())
        if len(shape) != 2:
            raise ModelError(
                self.file, f"tensor token_embd.weight must be a matrix, but has shape {shape}"
            )
        return shape[0]


def native_reader(path: str) -> Mapping[str, object]:
    """The native extension's reader. Imported on first use, so that the rest of this package works
    without the extension.
    """
    from penstock import _native

    return _native.read_gguf_metadata(path)


def read_header(file: Path, reader: GgufReader, served: int | None = None) -> GgufHeader:
    """Read the header. The reader reports damage by ValueError, which becomes a ModelError."""
    try:
        header = reader(str(file))
    except ValueError as error:
        raise ModelError(file, str(error).removeprefix(f"{file}: ")) from error
    metadata = cast("Mapping[str, object]", header["metadata"])
    tensors = cast("Sequence[TensorRow]", header["tensors"])
    shapes = {name: tuple(shape) for name, _, shape in tensors}
    ends = cast("Sequence[int]", header.get("ends", ()))
    return GgufHeader(file, metadata, shapes, tuple(ends), served)
