"""Hooks of schemathesis: bring generated requests past the rules that no schema states.

Loaded by `schemathesis run` through SCHEMATHESIS_HOOKS.
"""

from __future__ import annotations

from typing import Any

import schemathesis

MODEL = "tiny"
ADMIN_KEY = "admin"
GRAMMARS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "json_schema",
    "guided_regex",
    "regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "ebnf",
    "guided_json_object",
    "structural_tag",
    "text",
    "output_config",
    "output_format",
)
LEAST = 1e-6
"""Smaller penalties are numbers to the schema; their logits overflow."""


@schemathesis.hook
def before_call(context: object, case: Any, kwargs: object) -> None:
    """Name the served model and the admin key, keep one grammar, drop what needs something else."""
    if case.path.startswith("/v1/kv"):
        case.headers["authorization"] = f"Bearer {ADMIN_KEY}"
    body = case.body
    if not isinstance(body, dict):
        return
    if isinstance(body.get("model"), str):
        body["model"] = MODEL
    for name, value in body.items():
        if isinstance(value, float) and 0 < value < LEAST:
            body[name] = 0.5
    grammars = [name for name in GRAMMARS if body.get(name) not in (None, False)]
    kept = sum(map(len, body)) % len(grammars) if grammars else 0
    for name in grammars[:kept] + grammars[kept + 1 :]:
        del body[name]
    alone = ("ignore_eos",) if grammars else ()
    streamed = () if body.get("stream") else ("stream_options",)
    named = ("tool_choice", "function_call") if grammars or not body.get("tools") else ()
    for name in (*alone, *streamed, *named):
        body.pop(name, None)
