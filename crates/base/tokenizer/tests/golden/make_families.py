"""Writes families.json: conversations under templates written as families write theirs, and
the texts that transformers renders, or Jinja itself. Needs `pip install transformers jinja2`.

The templates, here and in templates/, are not the published ones, but use what those use: a system
turn folded into the first user turn, turns that must alternate, macros, tool calls as pairs of XML,
reasoning that is cut from earlier turns, tools as JSON or as types, lists that change, macros that
change a namespace, dates, loops that skip and end early. A case has the text, or what a template
raises as "error"; dates of the day on which this ran are written as {FORMAT of strftime}.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

from jinja2.exceptions import TemplateError
from jinja2.sandbox import SandboxedEnvironment
from transformers.utils.chat_template_utils import render_jinja_template

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set prefix = '' -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('turns must alternate') }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else '') }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception('no content') }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""
PHI = """{% for message in messages %}
{% if message['role'] == 'system' and tools %}
{{ '<|system|>' + message['content'] + '<|tool|>' + (tools | tojson) + '<|/tool|>' + '<|end|>' }}
{%- else %}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}
"""
GLM = """[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
{%- endif %}
{%- macro visible(content) -%}
    {%- if content is string -%}{{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{- content }}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last = loop.index0 -%}{%- endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and
    not visible(m.content).endswith('/nothink')) else '' -}}
{%- elif m.role == 'assistant' -%}<|assistant|>
{%- set content = visible(m.content) %}
{%- set reasoning = '' %}
{%- if '</think>' in content %}
    {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
    {%- set reasoning = reasoning.lstrip('\\n') %}
    {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{%- if loop.index0 > ns.last and reasoning -%}
{{ '\\n<think>' + reasoning.strip() + '</think>' }}
{%- else -%}{{ '\\n<think></think>' }}{%- endif -%}
{%- if content.strip() -%}{{ '\\n' + content.strip() }}{%- endif -%}
{%- for call in m.tool_calls or [] %}
{%- set call = call.function if call.function else call %}
{{ '\\n<tool_call>' + call.name }}
{% for k, v in call.arguments.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>{%- endfor %}
{%- elif m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}
{{- '\\n<tool_response>\\n' }}{{- m.content }}{{- '\\n</tool_response>' }}
{%- elif m.role == 'system' -%}<|system|>
{{ visible(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>
{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- endif -%}
"""
KIMI = """{% macro shown(m) -%}
    {%- set c = m.get('content') -%}
    {%- if c is string -%}
      {{ c }}
    {%- elif c is not none -%}
      {% for part in c -%}{{ part['text'] }}{%- endfor -%}
    {%- endif -%}
{%- endmacro %}
{%- set waiting = namespace(ids=[]) -%}
{%- set count = namespace(value=0) -%}
{%- set roles = [] -%}
{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{%- endif -%}
{% for message in messages %}
  {%- if loop.first and messages[0]['role'] != 'system' -%}
  <|im_system|>system<|im_middle|>You are an assistant.<|im_end|>
  {% endif %}
  {%- set _ = roles.append(message['role']) -%}
  <|im_{{ roles[-1] }}|>{{ message.get('name') or message['role'] }}<|im_middle|>
  {%- if message['role'] == 'assistant' and message.get('tool_calls') -%}
    {{ shown(message) }}<|tool_calls_section_begin|>
    {%- for call in message['tool_calls'] -%}
      {%- set id = 'functions.' + call['function']['name'] + ':' + (count.value | string) -%}
      {%- set count.value = count.value + 1 -%}
      {%- set _ = waiting.ids.append(id) -%}
      <|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>
      {{- call['function']['arguments'] | tojson }}<|tool_call_end|>
    {%- endfor -%}
    <|tool_calls_section_end|>
  {%- elif message['role'] == 'tool' -%}
    {%- if waiting.ids -%}
      {%- set id = waiting.ids.pop(0) -%}
    {%- else -%}
      {%- set id = 'functions.' + message.get('name', 'unknown') + ':' + (count.value | string) -%}
    {%- endif -%}
    ## Return of {{ id }}
{{ shown(message) }}
  {%- elif message['content'] is not none -%}
    {{ shown(message) }}
  {%- endif -%}
  <|im_end|>
{%- endfor -%}
{{ waiting.ids }}{{ roles | join(',') }}{{ waiting.ids | length }}{{ roles[:2] }}
{%- set _ = roles.insert(1, 'x') -%}{%- set _ = roles.extend(['y', 'z']) -%}
{{ roles | tojson }}{{ roles.pop() }}{{ roles.pop(-2) }}{{ 'x' in roles }}
{%- for role in roles -%}{{ loop.index }}{{ role }}{%- endfor -%}
{%- set _ = roles.clear() -%}{{ 'none' if not roles }}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}
"""
DEEPSEEK = """{% if not add_generation_prompt is defined %}
{%- set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(first=false, results=false, prompt='', thinks=thinking|default(true)) %}
{%- for m in messages %}{%- if m['role'] == 'system' %}
{%- set ns.prompt = ns.prompt + ('\n\n' if ns.prompt else '') + m['content'] %}{%- endif %}
{%- endfor %}{{ bos_token }}{{ ns.prompt }}
{%- macro end_results() -%}
    {%- if ns.results -%}
        {{- '<｜tool▁outputs▁end｜>' -}}{%- set ns.results = false -%}
    {%- endif -%}
{%- endmacro -%}
{%- if tools %}{{ tools | map(attribute='function') | list | tojson(indent=2) }}{% endif %}
{%- for m in messages -%}
    {%- if m['role'] != 'tool' -%}{{ end_results() }}{%- endif -%}
    {%- if m['role'] == 'user' -%}{{ '<｜User｜>' + m['content'] }}{%- endif -%}
    {%- if m['role'] == 'assistant' and m['tool_calls'] -%}
        {%- set ns.first = true -%}
        {{- '<｜Assistant｜><｜tool▁calls▁begin｜>' -}}
        {%- for tool in m['tool_calls'] -%}
            {{- '' if ns.first else '\n' -}}{%- set ns.first = false -%}
            {{- '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name']
                + '\n```json\n' + tool['function']['arguments'] | tojson + '\n```'
                + '<｜tool▁call▁end｜>' -}}
        {%- endfor -%}
        {{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' -}}
    {%- elif m['role'] == 'assistant' -%}
        {{- '<｜Assistant｜>' + m['content'].split('</think>')[-1] + '<｜end▁of▁sentence｜>' -}}
    {%- elif m['role'] == 'tool' -%}
        {%- if not ns.results -%}{{- '<｜tool▁outputs▁begin｜>' -}}{%- endif -%}
        {%- set ns.results = true -%}
        {{- '<｜tool▁output▁begin｜>' + m['content'] + '<｜tool▁output▁end｜>' -}}
    {%- endif -%}
{%- endfor -%}
{{ end_results() }}
{%- if add_generation_prompt -%}
{{ '<｜Assistant｜>' + ('<think>\n' if ns.thinks else '</think>') }}
{%- endif -%}
"""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wetter für einen Ort",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
SCHEMA = {
    "type": "object",
    "required": ["city", "unit"],
    "properties": {
        "city": {"type": "string", "description": "Ort"},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        "days": {"type": "integer", "default": 3},
        "at": {"type": ["string", "null"]},
        "items": {"type": "array", "items": {"type": "integer"}},
        "where": {
            "type": "object",
            "required": ["lat"],
            "properties": {"lat": {"type": "number"}, "note": {"type": "string"}},
        },
        "any": {"oneOf": [{"type": "string", "description": "name"}, {"type": "boolean"}]},
        "rows": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "some": {"type": "array", "nullable": True},
    },
}
MANY_TOOLS = [
    *TOOLS,
    {
        "type": "function",
        "function": {"name": "forecast", "description": "Tage", "parameters": SCHEMA},
    },
    {"type": "function", "function": {"name": "now"}},
]
USER = {"role": "user", "content": " hi \n"}
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": " two "}],
}
SYSTEM = {"role": "system", "content": "Be brief."}
ASSISTANT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nhello "}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "n": 2}}}
    ],
}
TWO_CALLS = CALL | {"tool_calls": CALL["tool_calls"] * 2}
RESULT = {"role": "tool", "content": '{"rain": true}'}
NO_CONTENT = CALL | {"content": None}
THOUGHT = CALL | {"thinking": "Weather is asked for."}
REASONED = {"role": "assistant", "content": "Yes.", "reasoning_content": "\nhm\n"}
NAMED = CALL | {"tool_calls": [CALL["tool_calls"][0] | {"id": "abcdefghi"}]}
NAMED_RESULT = RESULT | {"tool_call_id": "abcdefghi"}
SEARCH = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "function": {"name": "search", "arguments": {"q": "Köln", "top": "3"}}}
    ],
}
AGAIN = {"role": "user", "content": "And now?"}
TURNS = [[USER], [SYSTEM, USER], [SYSTEM, USER, ASSISTANT, USER], [USER, ASSISTANT, PARTS]]
CASES = {
    "gemma": (GEMMA, [(turns, None, {}) for turns in TURNS]),
    "phi": (PHI, [([USER], None, {}), ([SYSTEM, USER], TOOLS, {}), (TURNS[2], None, {})]),
    "glm": (
        GLM,
        [
            *((turns, None, {}) for turns in TURNS),
            ([SYSTEM, USER, CALL, RESULT, RESULT], TOOLS, {}),
            ([USER, CALL, RESULT, ASSISTANT, USER], TOOLS, {"enable_thinking": False}),
        ],
    ),
    "kimi": (
        KIMI,
        [
            *((turns, None, {}) for turns in TURNS),
            ([SYSTEM, USER, CALL, RESULT, RESULT], TOOLS, {}),
            ([USER, TWO_CALLS, RESULT, RESULT, CALL, RESULT, ASSISTANT, USER], TOOLS, {}),
            ([USER, TWO_CALLS], TOOLS, {}),
        ],
    ),
    "deepseek": (
        DEEPSEEK,
        [
            *((turns, None, {}) for turns in TURNS[:3]),
            ([SYSTEM, USER, CALL, RESULT, RESULT], TOOLS, {}),
            ([USER, TWO_CALLS, RESULT, RESULT, ASSISTANT, USER], TOOLS, {"thinking": False}),
        ],
    ),
}
CALLED = [SYSTEM, USER, CALL, RESULT]
LATER = [*CALLED, ASSISTANT, AGAIN]
PLAIN = [(turns, None, {}) for turns in [*TURNS[:3], [USER, ASSISTANT]]]
CASES_OF_FILES = {
    "deepseek2": PLAIN,
    "gemma2": [*PLAIN, ([USER, USER], None, {})],
    "gpt-oss": [
        *((turns, None, {}) for turns in [*TURNS[:2], [SYSTEM, USER, {**ASSISTANT}, AGAIN]]),
        ([SYSTEM, USER, THOUGHT, RESULT], MANY_TOOLS, {"reasoning_effort": "high"}),
        ([USER, THOUGHT, RESULT, ASSISTANT, AGAIN], TOOLS, {"model_identity": "You are a test."}),
        ([USER, NO_CONTENT, RESULT, RESULT], TOOLS, {"builtin_tools": ["python", "browser"]}),
        ([USER, RESULT], TOOLS, {}),
        ([USER, ASSISTANT | {"content": "<|channel|>final"}, AGAIN], None, {}),
    ],
    "llama3": [
        *((turns, None, {}) for turns in TURNS[:3]),
        ([SYSTEM, USER], MANY_TOOLS, {"date_string": "02 Jan 2031"}),
        (CALLED, TOOLS, {"tools_in_user_message": False}),
        (LATER, TOOLS, {}),
        ([USER, NO_CONTENT, RESULT], TOOLS, {}),
        ([USER, SEARCH, RESULT], TOOLS, {"builtin_tools": ["search", "code_interpreter"]}),
        ([USER, TWO_CALLS], TOOLS, {}),
        ([SYSTEM], TOOLS, {}),
    ],
    "llama4": [
        *((turns, None, {}) for turns in TURNS),
        ([USER], MANY_TOOLS, {}),
        (CALLED, TOOLS, {"tools_in_system": True}),
        ([USER, TWO_CALLS, RESULT, RESULT, ASSISTANT, PARTS], TOOLS, {}),
        ([USER, NO_CONTENT], TOOLS, {}),
    ],
    "mistral": [
        *((turns, None, {}) for turns in TURNS[:3]),
        ([SYSTEM, USER, NAMED, NAMED_RESULT], MANY_TOOLS, {}),
        ([SYSTEM, USER, NAMED, NAMED_RESULT, ASSISTANT, AGAIN], TOOLS, {}),
        ([USER, CALL], TOOLS, {}),
        ([USER, NAMED, RESULT], TOOLS, {}),
        ([USER, USER], None, {}),
        ([USER, {"role": "critic", "content": ""}], None, {}),
    ],
    "mixtral": [
        *((turns, None, {}) for turns in TURNS[:3]),
        ([USER, USER], None, {}),
    ],
    "phi4": PLAIN,
    "qwen2-moe": PLAIN,
    "qwen3": [
        *((turns, None, {}) for turns in TURNS[:3]),
        ([USER], MANY_TOOLS, {"enable_thinking": False}),
        ([SYSTEM, USER, CALL, RESULT, RESULT], TOOLS, {"enable_thinking": True}),
        (
            [USER, ASSISTANT | CALL | {"content": "<think>\nhm\n</think>\n\nI see"}, RESULT],
            TOOLS,
            {},
        ),
        ([USER, REASONED | TWO_CALLS, RESULT, REASONED], TOOLS, {}),
        (LATER, TOOLS, {}),
        ([USER, NO_CONTENT, RESULT, SYSTEM], None, {}),
    ],
    "qwq": [
        *((turns, None, {}) for turns in TURNS[:3]),
        (LATER, MANY_TOOLS, {}),
        ([USER, TWO_CALLS, RESULT, RESULT], TOOLS, {}),
    ],
}
DATES = ("%d %b %Y", "%d %B %Y", "%Y-%m-%d")
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def tojson(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def changing(template: str, **variables: object) -> str:
    """What Jinja renders where templates may change lists, which transformers does not let them."""
    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    return environment.from_string(template).render(**variables)


def rendered(template: str, messages: list[object], variables: dict[str, object]) -> str:
    if "append(" in template:
        return changing(template, messages=messages, **variables)
    (text,), _ = render_jinja_template(
        conversations=[messages], chat_template=template, **variables
    )
    return text


def outcome(template: str, messages: list[object], variables: dict[str, object]) -> dict[str, str]:
    try:
        text = rendered(template, messages, variables)
    except TemplateError as error:
        return {"error": str(error)}
    for form in DATES:
        text = text.replace(datetime.now(UTC).strftime(form), f"{{{form}}}")
    return {"text": text}


def main() -> None:
    here = Path(__file__).parent
    files = {name: (here / "templates" / f"{name}.jinja").read_text() for name in CASES_OF_FILES}
    all_cases = CASES | {name: (files[name], cases) for name, cases in CASES_OF_FILES.items()}
    written = {}
    for name, (template, cases) in all_cases.items():
        done = []
        for messages, tools, kwargs in cases:
            variables = {"tools": tools, "add_generation_prompt": True, **TOKENS, **kwargs}
            given = {"messages": messages, "tools": tools, "kwargs": kwargs}
            done.append(given | outcome(template, messages, variables))
        written[name] = {"template": template, "cases": done}
    out = here / "families.json"
    out.write_text(json.dumps(written, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
