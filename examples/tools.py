"""A round with a tool: the model calls a function, and its result goes back to the model.

Install the client with `pip install openai`, and start a server with `penstock serve smollm2`.
"""

import argparse
import json
import sys
from typing import Any

from openai import OpenAI


def add(a: int, b: int) -> int:
    return a + b


NUMBER = {"type": "integer", "minimum": 0, "maximum": 1000}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": NUMBER, "b": NUMBER},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
parser.add_argument("--api-key", default="unused", help="needed where the server has keys")
arguments = parser.parse_args()

client = OpenAI(base_url=arguments.base_url, api_key=arguments.api_key)
model = client.models.list().data[0].id
messages: list[Any] = [{"role": "user", "content": "How much is 17 plus 25?"}]
options: dict[str, Any] = {"model": model, "messages": messages, "temperature": 0}

# "required" makes the server allow nothing but a call that follows the schema of the parameters.
answer = client.chat.completions.create(
    **options, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200
)
message = answer.choices[0].message
if not message.tool_calls:
    sys.exit("the model called no tool")
messages.append(message.model_dump(exclude_none=True))
for call in message.tool_calls:
    result = add(**json.loads(call.function.arguments))
    print(f"{call.function.name}({call.function.arguments}) = {result}")
    messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})

answer = client.chat.completions.create(**options, max_tokens=60)
print("answer:", answer.choices[0].message.content)
