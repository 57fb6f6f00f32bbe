"""Jobs of requests, each in a process with bounds of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("penstock._native", reason="run `make install`")


def run(kind: str, job: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.job", kind]
    text = json.dumps(job)
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_a_trial_says_that_it_ended_whatever_is_wrong_with_the_grammar() -> None:
    grammars = [[1, '{"multipleOf": 9973}'], [2, "(a{1,100}){1,100}"], [2, "("]]
    done = run("grammar", {"grammars": grammars, "tokens": 300, "special": [["<end>", 0]]})
    assert (done.returncode, done.stdout) == (0, "ended")


@pytest.mark.parametrize("kind", ["template", "grammar", "other"])
def test_what_is_no_job_has_no_outcome(kind: str) -> None:
    done = run(kind, {})
    assert done.returncode != 0
    assert done.stdout == ""


def test_a_template_is_ended_by_its_own_bounds_first() -> None:
    source = "{% set ns = namespace(t='x') %}{% for i in range(64) %}"
    source += "{% set ns.t = ns.t ~ ns.t %}{% endfor %}"
    job = {
        "source": source,
        "special_tokens": {},
        "messages": [{"role": "user", "content": "x"}],
        "add_generation_prompt": False,
        "tools": None,
        "kwargs": {},
    }
    done = run("template", job)
    assert done.returncode == 0
    assert "too many steps" in json.loads(done.stdout)["limit"]
