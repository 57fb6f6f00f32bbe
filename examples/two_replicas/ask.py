"""Ask about two documents at a time, and print which replica answers.

Needs a gateway, and `pip install openai`.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

DOCUMENTS = {
    "harbour": "Ships wait in the harbour until the tide is high enough for them to leave. " * 40,
    "orchard": "Apples in the orchard are picked by hand when they are red on every side. " * 40,
}
QUESTIONS = ["What is this about?", "Who works there?", "What has to be awaited?"]

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--base-url", default="http://127.0.0.1:8080/v1")
arguments = parser.parse_args()

client = OpenAI(base_url=arguments.base_url, api_key="unused")
model = client.models.list().data[0].id
replicas_of: dict[str, set[str]] = {name: set() for name in DOCUMENTS}


def ask(name: str, question: str) -> str:
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[
            {"role": "system", "content": DOCUMENTS[name]},
            {"role": "user", "content": question},
        ],
        max_tokens=8,
    )
    replica: str = raw.headers["x-penstock-replica"]
    usage = raw.parse().model_dump()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    replicas_of[name].add(replica)
    return f"{name}: {replica}, {cached} of {usage['prompt_tokens']} prompt tokens cached"


for question in QUESTIONS:
    with ThreadPoolExecutor() as threads:
        for line in threads.map(ask, DOCUMENTS, [question] * len(DOCUMENTS)):
            print(line)

for name, replicas in replicas_of.items():
    if len(replicas) > 1:
        sys.exit(f"{name} went to several replicas: {', '.join(sorted(replicas))}")
print("each document stayed on one replica")
