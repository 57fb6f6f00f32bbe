"""Structured output: the server keeps the answer to a JSON schema, and a dataclass takes it.

Install the client with `pip install openai`, and start a server with `penstock serve smollm2`.
"""

import argparse
import json
import sys
from dataclasses import dataclass

from openai import OpenAI


@dataclass
class Person:
    name: str
    age: int
    mood: str

    def __post_init__(self) -> None:
        if not (0 <= self.age <= 120 and self.mood in ("happy", "sad")):
            sys.exit(f"the answer does not follow its schema: {self}")


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "mood": {"enum": ["happy", "sad"]},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("text", nargs="?", default="Anna is 31 years old and likes the sunny weather.")
parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
parser.add_argument("--api-key", default="unused", help="needed where the server has keys")
arguments = parser.parse_args()

client = OpenAI(base_url=arguments.base_url, api_key=arguments.api_key)
answer = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": f"Describe this person as JSON: {arguments.text}"}],
    response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
    max_tokens=100,
    temperature=0,
)
choice = answer.choices[0]
if choice.finish_reason != "stop":
    sys.exit(f"the answer is not complete: {choice.finish_reason}")
print(Person(**json.loads(choice.message.content or "")))
