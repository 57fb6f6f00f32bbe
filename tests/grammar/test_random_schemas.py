"""Random schemas: what a grammar writes is valid by `jsonschema`, and what is valid is allowed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tests.grammar.vocabulary import write_tokenizer

if TYPE_CHECKING:
    from penstock._native import Grammar, GrammarMasks, Tokenizer

Schema = dict[str, Any]

END = 256
NAMES = ["a", "b", "c d", "é"]
LENGTH = 160


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("penstock._native", reason="run `make install`")
    made = tmp_path_factory.mktemp("bytes")
    write_tokenizer(made)
    return made


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    from penstock._native import Tokenizer

    return Tokenizer(str(directory))


@pytest.fixture(scope="module")
def masks(directory: Path) -> GrammarMasks:
    from penstock._native import GrammarMasks

    return GrammarMasks(str(directory), 2)


class Draw:
    """Schemas, and values for them, that are made without looking at a grammar."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def schema(self, depth: int) -> Schema:
        kinds: list[Callable[[int], Schema]] = [self.number, self.text, self.constant, self.plain]
        if depth:
            kinds += [self.record, self.record, self.listing, self.union, self.reference]
        return self.random.choice(kinds)(depth)

    def root(self) -> Schema:
        node = {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/a~1node"}},
            "required": ["v"],
            "additionalProperties": False,
        }
        return {**self.schema(3), "$defs": {"a/node": node}}

    def number(self, _: int) -> Schema:
        low, high = sorted(self.random.choices([-100, -1.5, -1, 0, 0.25, 0.5, 1, 7, 99.5], k=2))
        kind = self.random.choice(["number", "integer"])
        schema: Schema = {"type": kind}
        if self.random.random() < 0.6:
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.random.random() < 0.6:
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = high
        return schema

    def text(self, _: int) -> Schema:
        schema: Schema = {"type": "string"}
        if self.random.random() < 0.5:
            schema["minLength"] = self.random.randint(0, 3)
            schema["maxLength"] = self.random.randint(3, 6)
        if self.random.random() < 0.3:
            schema["pattern"] = self.random.choice(["^[a-c]+$", "b", "^x?[0-9]{2,3}$"])
        if self.random.random() < 0.2:
            schema["format"] = self.random.choice(["binary", "byte", "password", "regex"])
        return schema

    def constant(self, _: int) -> Schema:
        values = [1, -3, "a", 'q"\\', None, True, {"a": [1]}, []]
        if self.random.random() < 0.5:
            return {"const": self.random.choice(values)}
        return {"enum": self.random.sample(values, 3)}

    def plain(self, _: int) -> Schema:
        return {"type": self.random.choice(["null", "boolean", ["string", "null"]])}

    def record(self, depth: int) -> Schema:
        names = self.random.sample(NAMES, self.random.randint(0, 3))
        schema: Schema = {
            "type": "object",
            "properties": {name: self.schema(depth - 1) for name in names},
            "required": [name for name in names if self.random.random() < 0.5],
        }
        if self.random.random() < 0.6:
            schema["additionalProperties"] = self.random.choice([False, {"type": "integer"}])
        if self.random.random() < 0.3:
            schema[self.random.choice(["minProperties", "maxProperties"])] = 1
        return schema

    def listing(self, depth: int) -> Schema:
        schema: Schema = {"type": "array", "items": self.schema(depth - 1)}
        if self.random.random() < 0.3:
            schema["prefixItems"] = [self.schema(depth - 1)]
        if self.random.random() < 0.5:
            schema["minItems"] = self.random.randint(0, 2)
            schema["maxItems"] = self.random.randint(1, 3)
        return schema

    def union(self, depth: int) -> Schema:
        name = self.random.choice(["anyOf", "oneOf", "allOf"])
        return {name: [self.schema(depth - 1) for _ in range(2)]}

    def reference(self, _: int) -> Schema:
        return {"$ref": "#/$defs/a~1node"}

    def value(self, schema: Schema, depth: int = 4) -> object:
        """A value that may be valid; members in the order of `properties`."""
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        if "$ref" in schema:
            inner = {"next": self.value(schema, depth - 1)} if depth and self.flip() else {}
            return {"v": self.random.randint(-9, 9), **inner}
        if branches := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
            return self.value(self.random.choice(branches), depth)
        kind = schema["type"]
        kind = self.random.choice(kind) if isinstance(kind, list) else kind
        makers = {"object": self.members, "array": self.items}
        if kind in makers:
            return makers[kind](schema, depth)
        return self.scalar(kind)

    def members(self, schema: Schema, depth: int) -> object:
        required, made = schema["required"], {}
        for name, inner_schema in schema["properties"].items():
            if name in required or self.flip():
                made[name] = self.value(inner_schema, depth - 1)
        if self.random.random() < 0.3:
            made["z"] = self.random.randint(0, 9)
        return made

    def items(self, schema: Schema, depth: int) -> object:
        length = self.random.randint(0, 3)
        prefix = schema.get("prefixItems", [])
        items = [*prefix, *[schema["items"]] * 3][:length]
        return [self.value(item, depth - 1) for item in items]

    def scalar(self, kind: str) -> object:
        if kind == "string":
            return self.random.choice(["", "a", "ab", "cab", "12", "x123", "b\tx", 'é"'])
        if kind == "null":
            return None
        if kind == "boolean":
            return self.flip()
        values: list[float] = [-100, -7, -1, 0, 1, 5, 7, 99, 1000]
        if kind == "number":
            values += [-1.5, 0.25, 0.3, 0.5, 99.5]
        return self.random.choice(values)

    def flip(self) -> bool:
        return self.random.random() < 0.5


def written(masks: GrammarMasks, grammar: Grammar, draw: random.Random) -> str | None:
    """A text of the grammar, drawn byte by byte; `None` where it does not end in time."""
    sequence = masks.start(grammar.encoded, [END], [])
    text = bytearray()
    while len(text) < LENGTH:
        mask = sequence.mask(0, 30.0)
        assert isinstance(mask, bytes), (mask, bytes(text))
        bits = int.from_bytes(mask, "little")
        allowed = [token for token in range(END + 1) if bits >> token & 1]
        assert allowed
        if END in allowed and (draw.random() < 0.5 or len(allowed) == 1):
            return text.decode(errors="replace")
        # Brackets, quotes and digits more often than other bytes.
        likely = [t for t in allowed if t < 128 and chr(t) in '{}[]",:0123456789abx.-']
        token = draw.choice(likely if likely and draw.random() < 0.9 else allowed)
        if token == END:
            return text.decode(errors="replace")
        text.append(token)
        sequence.accept([token])
    return None


def valid(schema: Schema, value: object) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def takes(grammar: Grammar, value: object) -> bool:
    text = json.dumps(value, ensure_ascii=False).encode()
    taken, whole, _ = grammar.follow(list(text))
    return taken == len(text) and whole


@pytest.mark.parametrize("seed", range(12))
def test_what_is_written_is_valid_and_what_is_valid_is_allowed(
    tokenizer: Tokenizer, masks: GrammarMasks, seed: int
) -> None:
    draw, compiled, checked = Draw(seed), 0, 0
    for _ in range(15):
        schema = draw.root()
        try:
            grammar = tokenizer.grammar("json", json.dumps(schema))
        except ValueError:
            continue
        compiled += 1
        for _ in range(4):
            text = written(masks, grammar, draw.random)
            if text is not None:
                assert valid(schema, json.loads(text)), (schema, text)
                checked += 1
        for _ in range(8):
            value = draw.value(schema)
            right = valid(schema, value)
            allowed = takes(grammar, value)
            assert right or not allowed, f"{schema} allows {value}"
            if right and not allowed:
                # `z` may stand before the members of a second schema that is merged.
                assert "allOf" in json.dumps(schema), f"{schema} refuses {value}"
            checked += 1
    assert compiled >= 5
    assert checked >= 20


def test_a_name_that_is_spelled_with_escapes_is_not_free(tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    grammar = tokenizer.grammar("json", json.dumps(schema))

    def allowed(text: str) -> bool:
        taken, whole, _ = grammar.follow(list(text.encode()))
        return taken == len(text.encode()) and whole

    assert allowed('{"a": 1, "b": "\\n"}')
    assert not allowed('{"a": 1, "\\u0061": "x"}')
    assert not allowed('{"a": 1, "a": "x"}')


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "minProperties": 2}, "minProperties at # "),
        (
            {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]},
            "contains itself",
        ),
        ({"properties": {"x": {"uniqueItems": True}}}, "uniqueItems at #/properties/x "),
        ({"$defs": {"p/q": {"not": {}}}, "$ref": "#/$defs/p~1q"}, "not at #/$defs/p~1q "),
        ({"$ref": "#/$defs/x"}, "$ref at # points to nothing"),
        ({"$ref": "https://example.com/schema"}, "$ref at # points to nothing"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 2}]}, "oneOf is not supported where"),
        ({"patternProperties": {"a": {}, "b": {}}}, "patternProperties /a/ and /b/"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "no output matches the schema"),
        ({"type": "strong"}, "type at # "),
        ({"properties": {"x": 3}}, "a schema at #/properties/x "),
    ],
)
def test_refusals_name_keyword_and_place(tokenizer: Tokenizer, schema: Schema, reason: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as refused:
        tokenizer.grammar("json", json.dumps(schema))
    said = str(refused.value)
    assert reason in said
    inner = ["coerce", "lenient", "referencing", "Unimplemented", "rule_", "Unsatisfiable"]
    assert not [word for word in inner if word in said]


@pytest.mark.parametrize("name", ["binary", "byte", "password", "uri-reference", "regex", "x"])
def test_other_formats_are_annotations(tokenizer: Tokenizer, name: str) -> None:
    grammar = tokenizer.grammar("json", json.dumps({"type": "string", "format": name}))
    assert takes(grammar, "anything é")


def test_parts_without_a_finite_text_are_left_out(tokenizer: Tokenizer) -> None:
    endless = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}
    schema = {
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/n"}, "m": {"type": "integer"}},
        "$defs": {"n": endless},
    }
    grammar = tokenizer.grammar("json", json.dumps(schema))
    assert takes(grammar, {"m": 1})
    taken, _, _ = grammar.follow(list(b'{"n"'))
    assert taken < 4
    either = {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}], "$defs": {"n": endless}}
    grammar = tokenizer.grammar("json", json.dumps(either))
    assert takes(grammar, None)
    assert grammar.follow(list(b"{"))[0] == 0
