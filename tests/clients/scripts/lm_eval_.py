"""lm-eval with a local task: log-likelihoods by echoed prompts, and generated answers."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from check import BASE_URL, MODEL, feature

ROWS = [
    {"question": "The capital of France is", "choices": [" Paris", " Berlin"], "answer": 0},
    {"question": "The capital of Germany is", "choices": [" Rome", " Berlin"], "answer": 1},
    {"question": "Two and two make", "choices": [" four", " green"], "answer": 0},
    {"question": "The opposite of hot is", "choices": [" cold", " table"], "answer": 0},
]
COMMON = """
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
num_fewshot: 0
"""
CHOICE = """
task: local_choice
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
target_delimiter: ""
metric_list: [{metric: acc}]
"""
GENERATED = """
task: local_generated
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 16, do_sample: false}
metric_list: [{metric: exact_match}]
"""


def evaluated(model: str, path: str, task: str, *flags: str) -> dict[str, object]:
    """The results of one task."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        rows = directory / "rows.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        (directory / "choice.yaml").write_text(COMMON % rows + CHOICE)
        (directory / "generated.yaml").write_text(COMMON % rows + GENERATED)
        given = f"model={MODEL},base_url={BASE_URL}{path},num_concurrent=2,max_retries=1"
        command = [sys.executable, "-m", "lm_eval", "run", "--model", model, "--tasks", task]
        done = subprocess.run(
            [
                *command,
                *("--model_args", given + ",tokenizer_backend=remote" * (not flags)),
                *("--include_path", name, "--output_path", name + "/out", *flags),
            ],
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "HF_DATASETS_OFFLINE": "1",
                "HF_HOME": name + "/home",
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-400:]
        (found,) = directory.glob("out/**/results*.json")
        results: dict[str, object] = json.loads(found.read_text())["results"][task]
        return results


@feature("local-completions: multiple choice by log-likelihood")
def _() -> None:
    results = evaluated("local-completions", "/completions", "local_choice")
    assert results["acc,none"] == 1.0, results


@feature("local-completions: generate_until")
def _() -> None:
    results = evaluated("local-completions", "/completions", "local_generated")
    assert "exact_match,none" in results


@feature("local-chat-completions: generate_until")
def _() -> None:
    path, flag = "/chat/completions", "--apply_chat_template"
    assert "exact_match,none" in evaluated("local-chat-completions", path, "local_generated", flag)
