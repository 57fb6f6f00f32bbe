"""Writes families.json: conversations under templates written as families write theirs, and
the texts that transformers renders. Needs `pip install transformers jinja2`.

The templates are not the published ones, but use what those use: a system turn folded into the
first user turn, turns that must alternate, macros, tool calls as pairs of XML, reasoning that is
cut from earlier turns, tools as JSON.
"""

import json
from pathlib import Path

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
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def main() -> None:
    written = {}
    for name, (template, cases) in CASES.items():
        rendered = []
        for messages, tools, kwargs in cases:
            (text,), _ = render_jinja_template(
                conversations=[messages],
                tools=tools,
                chat_template=template,
                add_generation_prompt=True,
                **TOKENS,
                **kwargs,
            )
            rendered.append({"messages": messages, "tools": tools, "kwargs": kwargs, "text": text})
        written[name] = {"template": template, "cases": rendered}
    out = Path(__file__).parent / "families.json"
    out.write_text(json.dumps(written, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
