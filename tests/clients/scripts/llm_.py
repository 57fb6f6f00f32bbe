"""llm, the command: models of `extra-openai-models.yaml`."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from check import BASE_URL, MODEL, QUESTION, feature

SETTINGS = f"""
- model_id: penstock
  model_name: {MODEL}
  api_base: {BASE_URL}
  supports_tools: true
  supports_schema: true
- model_id: penstock-completion
  model_name: {MODEL}
  api_base: {BASE_URL}
  completion: true
"""
LLM = str(Path(sys.executable).with_name("llm"))


def run(*words: str, model: str = "penstock") -> str:
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "extra-openai-models.yaml").write_text(SETTINGS)
        done = subprocess.run(
            [LLM, "-m", model, "-o", "max_tokens", "200", "--key", "none", *words],
            env={**os.environ, "LLM_USER_PATH": home},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    return done.stdout


@feature("prompt, streamed and whole")
def _() -> None:
    run(QUESTION)
    run("--no-stream", QUESTION)


@feature("completions")
def _() -> None:
    run("Once upon a time", model="penstock-completion")


@feature("options")
def _() -> None:
    run("-o", "frequency_penalty", "0.2", "-o", "json_object", "1", "A JSON object.")


@feature("--schema")
def _() -> None:
    kinds = {"age": {"type": "integer"}, "adult": {"type": "boolean"}}
    # Its short form, "age int, adult bool", lets any further members in, and the model adds them.
    schema = {"type": "object", "properties": kinds, "required": [*kinds]}
    text = json.dumps({**schema, "additionalProperties": False})
    found = json.loads(run("--schema", text, "A person."))
    assert set(found) == {"age", "adult"}, found


@feature("tools")
def _() -> None:
    run("-T", "llm_version", "Which version is this?")
