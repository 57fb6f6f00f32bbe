"""Each example runs as in examples/README.md and prints the expected output. Examples that check a
result fail if it is wrong.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from penstock.cli.main import main
from penstock.config.machine import free_port
from tests.deploy.test_helm import CHART, by_helm, read
from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.e2e.gateway import Gateway
from tests.e2e.server import Command, Server
from tests.e2e.sim import Sim
from tests.e2e.stores import Redis

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT = 550
CLIENTS = ("client.py", "tools.py", "structured_output.py")
SCRIPTS = ("two_replicas/run.sh", "tensor_parallel.sh", "redis_tier/run.sh")
REPLICA = re.compile(r"^(\w+): ([\d.:]+), (\d+) of \d+ prompt tokens cached$", re.M)


def run(example: str, *words: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Exit status and output of an example, with the `penstock` and `python3` of this test."""
    pytest.importorskip("openai", reason="the examples' clients: pip install openai")
    program = [sys.executable] if example.endswith(".py") else ["bash"]
    for name in ("bash", "curl"):
        if program == ["bash"] and shutil.which(name) is None:
            pytest.skip(f"{example} needs {name}")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        [*program, EXAMPLES / example, *words],
        env={**clean, "PATH": path, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=TIMEOUT)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    print(output)
    return process.returncode, output


def passed(example: str, *words: str, env: Mapping[str, str] | None = None) -> str:
    """Output of an example that succeeds."""
    status, output = run(example, *words, env=env)
    assert status == 0, output
    return output


def failed(example: str, *words: str) -> str:
    """Output of an example that fails."""
    status, output = run(example, *words)
    assert status != 0, output
    return output


def printed(example: str) -> str:
    """Output of an example as the README shows it."""
    section = (EXAMPLES / "README.md").read_text().split(f"\n## `{example}`\n")[1]
    block = section.split("```console\n")[1].split("```")[0]
    return "".join(line for line in block.splitlines(True) if not line.startswith("$ "))


def base(server: Command) -> tuple[str, str]:
    return "--base-url", f"{server.url}/v1"


def test_the_readme_has_a_section_for_each_example() -> None:
    sections = re.findall(r"^## `(.+?)/?`", (EXAMPLES / "README.md").read_text(), re.M)
    there = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__"}
    assert sorted(sections) == sorted(there)


def test_examples_are_short() -> None:
    files = [path for path in EXAMPLES.rglob("*") if path.suffix in (".py", ".sh", ".yaml")]
    assert len(files) > 10
    assert not [path for path in files if len(path.read_text().splitlines()) >= 60]


def test_the_client_prints_a_streamed_answer(server: Server) -> None:
    answer = passed("client.py", *base(server))
    assert "Paris" in answer
    assert answer == printed("client.py")


def test_the_client_sends_its_question_and_key(serve: Serve) -> None:
    with serve("--api-key", "secret") as server:
        words = ["Tell me the capital of France.", *base(server)]
        assert "Paris" in passed("client.py", *words, "--api-key", "secret")
        assert "401" in failed("client.py", *words)


def test_the_tool_is_called_and_its_result_goes_back(server: Server) -> None:
    answer = passed("tools.py", *base(server))
    assert ") = 42\nanswer: 42" in answer
    assert answer == printed("tools.py")


def test_the_structured_answer_is_a_person(server: Server) -> None:
    person = passed("structured_output.py", *base(server))
    assert person == printed("structured_output.py")


@pytest.mark.parametrize("example", CLIENTS)
def test_a_client_without_a_server_fails(example: str) -> None:
    closed = f"http://127.0.0.1:{free_port()}/v1"
    assert "Connection error" in failed(example, "--base-url", closed)


def test_two_replicas_keep_each_document_on_one_of_them(model_file: Path) -> None:
    ports = [str(free_port()) for _ in range(3)]
    output = passed("two_replicas/run.sh", str(model_file), *ports)
    answers = REPLICA.findall(output)
    assert len(answers) == 6
    assert {replica for _, replica, _ in answers} <= {f"127.0.0.1:{port}" for port in ports[1:]}
    assert [int(cached) > 0 for _, _, cached in answers] == [False] * 2 + [True] * 4
    assert output.endswith("each document stayed on one replica\n")


def test_a_gateway_that_takes_turns_is_noticed(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text("scorers: []\npicker: round-robin\n")
    with Sim(replicas=3) as sim:
        backends = [word for url in sim.urls for word in ("--backend", url)]
        with Gateway(*backends, "--explain", "--profile", str(profile)) as gateway:
            output = failed("two_replicas/ask.py", *base(gateway))
    assert "went to several replicas" in output


def test_two_ranks_answer_together(model_file: Path) -> None:
    output = passed("tensor_parallel.sh", str(model_file), str(free_port()))
    assert "rank 0 loaded" in output
    assert "rank 1 loaded" in output
    assert "Paris" in output


@pytest.mark.parametrize("example", SCRIPTS)
def test_a_script_whose_server_does_not_start_shows_its_log(example: str) -> None:
    output = failed(example, "missing.gguf", str(free_port()))
    assert "missing.gguf" in output
    assert "Traceback" not in output


def test_a_server_reads_what_another_one_left_in_redis(model_file: Path, tmp_path: Path) -> None:
    redis = Redis(tmp_path)
    try:
        redis.start()
        port = str(free_port())
        output = passed("redis_tier/run.sh", str(model_file), port, redis.place())
    finally:
        redis.kill()
    first, second = output.split("second server")
    remote = [[int(n) for n in re.findall(r"'remote': (\d+)", part)] for part in (first, second)]
    assert remote[0] == [0, 0, 0]
    assert max(remote[1]) > 500


def test_a_server_without_redis_is_noticed() -> None:
    with Sim() as sim:
        output = failed("redis_tier/ask.py", *base(sim), "--expect-remote")
    assert "no prompt was read from the remote tier" in output


def test_the_profile_finds_cached_prompts() -> None:
    output = passed("scorer/compare.sh")
    (found,) = re.findall(r"cached: (\d+)% with the profile, (\d+)% with round robin", output)
    assert int(found[0]) > int(found[1])


def test_a_profile_that_is_no_better_than_round_robin_is_noticed(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text("scorers: []\npicker: round-robin\n")
    output = failed("scorer/compare.sh", str(profile))
    assert "no more cached prompts than round robin" in output
    profile.write_text("scorers: [{name: prefixes, weight: 1}]\n")
    assert "prefixes" in failed("scorer/compare.sh", str(profile))


def test_a_gateway_takes_the_profile() -> None:
    profile = str(EXAMPLES / "scorer/profile.yaml")
    with (
        Sim() as sim,
        Gateway("--backend", sim.url, "--profile", profile, "--explain") as gateway,
        gateway.client() as client,
    ):
        body = {"model": "sim", "prompt": "one two three", "max_tokens": 2}
        assert client.post("/v1/completions", json=body).status_code == 200
        (pick,) = client.get("/replicas").json()["picks"]
    assert [(one["name"], one["weight"]) for one in pick["scores"]] == [
        ("prefix", 3),
        ("queue", 1),
        ("running", 1),
    ]


def test_the_backend_repeats_the_last_token(
    serve: Serve, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
    output = passed("backend/generate.py", "--model", str(model_file))
    assert printed("backend/") in output
    with serve("--device", "backend.echo") as server, server.client() as client:
        choice = sse.complete(client, "what an echo", 3)
        assert choice["text"] == " echo echo echo"


def chart_with_the_values(folder: Path) -> dict[str, Any]:
    """The chart with examples/helm_values.yaml as its defaults, in `folder`; its values."""

    def merged(under: Any, over: Any) -> Any:
        if not isinstance(under, dict) or not isinstance(over, dict):
            return over
        both = under.keys() & over.keys()
        return {**under, **over, **{key: merged(under[key], over[key]) for key in both}}

    shutil.copytree(CHART, folder)
    own = yaml.safe_load((EXAMPLES / "helm_values.yaml").read_text())
    values = merged(yaml.safe_load((CHART / "values.yaml").read_text()), own)
    assert isinstance(values, dict)
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    return values


def generated(folder: Path) -> Path:
    """The chart that `penstock deploy helm` writes where its flags ask for the same."""
    image = "registry.example.com/penstock:0.2.0"
    words = ["--pull", "HuggingFaceTB/SmolLM2-135M-Instruct", "--pod-monitor"]
    words += ["--gateway", "proxy", "--gateway-image", image, "--api-key-secret", "penstock-keys"]
    plan = str(CHART / "plan.yaml")
    assert main(["deploy", "helm", plan, "-o", str(folder), "--image", image, *words]) == 0
    return folder


def test_the_values_make_what_the_generator_makes(tmp_path: Path) -> None:
    values = chart_with_the_values(tmp_path / "chart")
    jsonschema.validate(values, yaml.safe_load((CHART / "values.schema.json").read_text()))
    objects = read(tmp_path / "chart", "smollm2")
    assert objects == read(generated(tmp_path / "generated"), "smollm2")
    assert objects["Deployment", "smollm2"]["spec"]["replicas"] == 2
    assert ("Service", "smollm2-gateway") in objects


@pytest.mark.slow
def test_helm_takes_the_values(tmp_path: Path) -> None:
    objects = by_helm(CHART, "smollm2", "--values", str(EXAMPLES / "helm_values.yaml"))
    assert objects == read(generated(tmp_path / "generated"), "smollm2")
