"""Writes families.json: conversations under templates written as families write theirs, and
the texts that transformers renders, or Jinja itself. Needs `pip install transformers jinja2`.

The templates are not the published ones, but use what those use: a system turn folded into the
first user turn, turns that must alternate, macros, tool calls as pairs of XML, reasoning that is
cut from earlier turns, tools as JSON, lists that change, macros that change a namespace.
"""

import json
from pathlib import Path

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


def main() -> None:
    written = {}
    for name, (template, cases) in CASES.items():
        rendered = []
        for messages, tools, kwargs in cases:
            variables = {"tools": tools, "add_generation_prompt": True, **TOKENS, **kwargs}
            if "append(" in template:
                text = changing(template, messages=messages, **variables)
            else:
                (text,), _ = render_jinja_template(
                    conversations=[messages], chat_template=template, **variables
                )
            rendered.append({"messages": messages, "tools": tools, "kwargs": kwargs, "text": text})
        written[name] = {"template": template, "cases": rendered}
    out = Path(__file__).parent / "families.json"
    out.write_text(json.dumps(written, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
