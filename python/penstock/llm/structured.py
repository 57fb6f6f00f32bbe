"""Constraints on the structure of an output, with vLLM's names."""

from __future__ import annotations

import json as texts
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core import InvalidValueError
from penstock.llm.arguments import check_fields, checked_class

FIELDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
ANY_OBJECT = '{"type":"object"}'


@checked_class()
@dataclass(slots=True)
class StructuredOutputsParams:
    """A grammar for outputs. Exactly one of the first six fields must be set; the whole output must
    match it.

    `json` is a schema and `structural_tag` a tag, each as a mapping or as JSON text. `regex` and
    `grammar` have the syntax of docs/api.md. `json_object` allows any object.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    disable_fallback: bool = False
    """Ignored: there is only one implementation, which never relaxes a constraint."""
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        self.grammar_text()

    def grammar_text(self) -> tuple[str, str]:
        """Kind and text of the grammar, for the native `Tokenizer.grammar`. Raises
        InvalidValueError, which names the field at fault.
        """
        check_fields(self)
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            if getattr(self, name):
                raise InvalidValueError(name, True, "False: the schema decides")
        if self.whitespace_pattern is not None:
            raise InvalidValueError("whitespace_pattern", self.whitespace_pattern, "None")
        given = [name for name in FIELDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise InvalidValueError("structured_outputs", given, f"one of {', '.join(FIELDS)}")
        (name,) = given
        return ("json", ANY_OBJECT) if name == "json_object" else (name, self._text(name))

    def _text(self, name: str) -> str:
        value = getattr(self, name)
        if name == "choice":
            return texts.dumps(list(value))
        if isinstance(value, Mapping):
            try:
                return texts.dumps(dict(value))
            except (TypeError, ValueError) as error:
                raise InvalidValueError(name, value, f"JSON: {error}") from error
        return str(value)


GuidedDecodingParams = StructuredOutputsParams
"""vLLM's older name."""
