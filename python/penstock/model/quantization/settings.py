"""The quantisation of a checkpoint: which modules are quantised, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from penstock.model.quantization.patterns import Pattern
from penstock.model.quantization.scheme import Scheme
from penstock.model.sizing import Part

LINEAR: tuple[Part, ...] = ("attention", "dense", "experts", "shared")
"""Parts of a model that quantisation tools convert unless their settings exclude them."""


@dataclass(frozen=True, slots=True)
class Rule:
    pattern: Pattern
    scheme: Scheme | None
    """None: modules that the pattern matches are not quantised."""


@dataclass(frozen=True)
class Quantization:
    """The first rule that matches a module decides; without one, the part of the model to which
    the module belongs.
    """

    method: str
    """Name of the format."""
    rules: tuple[Rule, ...]
    parts: Mapping[Part, Scheme] = field(default_factory=dict)

    def scheme(self, module: str, part: Part) -> Scheme | None:
        """The scheme of a module, by its name in the checkpoint. None if it is not quantised."""
        named = self._named.get(module, len(self.rules))
        for index, rule in self._unnamed:
            if index > named:
                break
            if rule.pattern.matches(module):
                return rule.scheme
        return self.rules[named].scheme if named < len(self.rules) else self.parts.get(part)

    @cached_property
    def _named(self) -> dict[str, int]:
        """Index of the first rule for each whole name. Some checkpoints list hundreds of names, and
        a mixture has tens of thousands of modules.
        """
        indices = reversed(range(len(self.rules)))
        patterns = ((self.rules[index].pattern, index) for index in indices)
        return {pattern.text: index for pattern, index in patterns if pattern.kind == "name"}

    @cached_property
    def _unnamed(self) -> list[tuple[int, Rule]]:
        """The other rules, each with its index."""
        rules = enumerate(self.rules)
        return [(index, rule) for index, rule in rules if rule.pattern.kind != "name"]

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """The different schemes, first of parts of the model, then of rules."""
        return tuple(dict.fromkeys(self._all()))

    def describe(self) -> str:
        """The format and its schemes in words."""
        return f"{self.method} ({'; '.join(each.describe() for each in self.schemes)})"

    def _all(self) -> Iterator[Scheme]:
        yield from self.parts.values()
        yield from (rule.scheme for rule in self.rules if rule.scheme is not None)
