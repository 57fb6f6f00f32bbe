"""Jinja2 with what transformers gives to chat templates, and the same through Penstock."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import nodes, pass_eval_context
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from penstock._native import run_template

Outcome = tuple[str, str]
"""Whether there is a text, and it or the error."""

HELLO = [{"role": "user", "content": "hi"}]


class Generation(Extension):
    """Marks the assistant's tokens for training."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _body(self, _: nodes.EvalContext, caller: Callable[[], str]) -> str:
        return caller()


def raise_exception(message: str) -> None:
    raise TemplateError(message)


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def strftime_now(format: str) -> str:  # noqa: A002  # templates name it
    return datetime.now().strftime(format)


def environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = strftime_now
    return made


ENVIRONMENT = environment()


def rendered(source: str, variables: dict[str, Any]) -> Outcome:
    given = {"messages": HELLO, "tools": None, "documents": None, "add_generation_prompt": True}
    try:
        return "text", ENVIRONMENT.from_string(source).render(**{**given, **variables})
    except Exception as error:  # noqa: BLE001  # whatever Python raises, a template fails
        return "error", f"{type(error).__name__}: {error}"


def ours(source: str, variables: dict[str, Any]) -> Outcome:
    own = ("messages", "tools", "add_generation_prompt")
    job = {
        "source": source,
        "special_tokens": {},
        "messages": variables.get("messages", HELLO),
        "add_generation_prompt": variables.get("add_generation_prompt", True),
        "tools": variables.get("tools"),
        "kwargs": {name: value for name, value in variables.items() if name not in own},
    }
    outcome: dict[str, str] = json.loads(run_template(json.dumps(job)))
    [(kind, text)] = outcome.items()
    return ("text", text) if kind == "text" else ("error", f"{kind}: {text}")
