"""Chat with a Penstock server through the OpenAI client; the answer is printed as it comes.

Install the client with `pip install openai`, and start a server with `penstock serve smollm2`.
"""

import argparse
import sys

from openai import OpenAI

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("question", nargs="?", default="Tell me the capital of France.")
parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
parser.add_argument("--api-key", default="unused", help="needed where the server has keys")
arguments = parser.parse_args()

client = OpenAI(base_url=arguments.base_url, api_key=arguments.api_key)
model = client.models.list().data[0].id

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": arguments.question}],
    max_tokens=128,
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
)

usage = None
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    # The last chunk has the counts of tokens and no choices.
    usage = chunk.usage or usage

print()
if usage is None or usage.completion_tokens == 0:
    sys.exit("the server sent no answer")
print(f"{model}: {usage.prompt_tokens} prompt tokens, {usage.completion_tokens} output tokens")
