"""Access to a checkpoint's metadata, which is untrusted: types and ranges of values are checked."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.model.errors import ModelError, unsupported


class Fields:
    """Values of one metadata file, looked up as `prefix + key`. A value that is missing without a
    default, or has a wrong type or range, raises ModelError. JSON null counts as missing, as in
    transformers. `served` is the maximum length that the user requests, or None. `read` collects
    the full names of all keys that are looked up, also in nested objects.
    """

    def __init__(
        self,
        file: Path,
        values: Mapping[str, object],
        prefix: str = "",
        *,
        served: int | None = None,
        read: set[str] | None = None,
    ) -> None:
        self.file = file
        self.read = set() if read is None else read
        self.served = served
        self._values = values
        self._prefix = prefix

    def within(self, key: str) -> "Fields | None":
        """The nested object at `key`, or None. Its errors name `key.inner`."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(key, "an object")
        nested = {f"{self._prefix}{key}.{inner}": item for inner, item in value.items()}
        return Fields(
            self.file, nested, f"{self._prefix}{key}.", served=self.served, read=self.read
        )

    def changed(self, values: Mapping[str, object]) -> "Fields":
        """A copy with changed values; the value None removes a key."""
        own = {self._prefix + key: value for key, value in values.items()}
        values = {**self._values, **own}
        return Fields(self.file, values, self._prefix, served=self.served, read=self.read)

    def items(self) -> Iterator[tuple[str, object]]:
        """Keys without the prefix, and values."""
        size = len(self._prefix)
        for key, value in self._values.items():
            if key.startswith(self._prefix):
                self.read.add(key)
                yield key[size:], value

    def names(self) -> list[str]:
        """Keys without the prefix."""
        return [key for key, _ in self.items()]

    def holds_objects(self) -> bool:
        """Whether any value is an object."""
        return any(isinstance(value, dict) for value in self._values.values())

    def get(self, key: str) -> object:
        self.read.add(self._prefix + key)
        return self._values.get(self._prefix + key)

    def is_null(self, key: str) -> bool:
        """Whether the file has `key` with the value null. For most keys this is the same as a
        missing key.
        """
        return self.get(key) is None and self._prefix + key in self._values

    def unread(self) -> list[str]:
        """Keys that have not been looked up, in the order of the file; of an object of which only
        some keys have been, these are `outer.inner`.
        """
        found = []
        for key, value in self._values.items():
            inner = [f"{key}.{name}" for name in value] if isinstance(value, dict) else []
            if key not in self.read:
                found.append(key)
            elif any(name in self.read for name in inner):
                found += [name for name in inner if name not in self.read]
        return found

    def refuse(self, key: str, supported: str) -> ModelError:
        return unsupported(self.file, self._prefix + key, self.get(key), supported)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self._present(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.refuse(key, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self._present(key, default)
        # NaN fails the comparison, too.
        if (
            not isinstance(value, (int, float))
            or isinstance(value, bool)
            or not low <= value <= high
        ):
            raise self.refuse(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._present(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """The list of strings at `key`; empty if it is missing."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refuse(key, "a list of strings")
        return tuple(value)

    def token(self, key: str, vocab: int) -> int | None:
        """The token id at `key`; None if it is missing, or -1, which some exporters write
        for none.
        """
        if self.get(key) is None or self.get(key) == -1:
            return None
        return self.integer(key, 0, vocab - 1)

    def _present(self, key: str, default: object) -> object:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(self.file, f"{self._prefix}{key} is missing")
        return value
