"""Ask about three documents, and print which tier of the KV cache had how much of each prompt.

With --expect-remote it fails unless a prompt was read from a remote tier.
"""

import argparse
import sys

from openai import OpenAI

DOCUMENTS = [
    "Ships wait in the harbour until the tide is high enough for them to leave. ",
    "Apples in the orchard are picked by hand when they are red on every side. ",
    "Trains leave the station in the morning and are back before the night. ",
]

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
parser.add_argument("--expect-remote", action="store_true")
arguments = parser.parse_args()

client = OpenAI(base_url=arguments.base_url, api_key="unused")
model = client.models.list().data[0].id
remote = 0
for sentence in DOCUMENTS:
    answer = client.chat.completions.create(
        model=model,
        messages=[
            {"role": "system", "content": sentence * 48},
            {"role": "user", "content": "What is this about?"},
        ],
        max_tokens=8,
        extra_body={"return_cached_tokens_by_tier": True},
    )
    usage = answer.model_dump()["usage"]
    by_tier = usage["prompt_tokens_details"]["cached_tokens_by_tier"]
    print(f"  {usage['prompt_tokens']} prompt tokens, cached: {by_tier}")
    remote += by_tier.get("remote", 0)

if arguments.expect_remote and remote == 0:
    sys.exit("no prompt was read from the remote tier")
