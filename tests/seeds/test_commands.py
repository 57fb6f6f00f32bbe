"""The sources' own words: each of their commands runs, or is refused with a reason."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from penstock.cli.arguments import settings
from penstock.cli.main import main, parser
from penstock.config.resolve import resolve
from penstock.config.sources import gather
from penstock.core import PenstockError
from tests.limits import HANG
from tests.seeds.sources import HERE, Command, commands

GIB = 2**30
FEW = {
    "--num-prompts": "4",
    "--random-prefix-len": "10",
    "--random-input-len": "20",
    "--random-output-len": "5",
    "--request-rate": "50",
}
"""In place of hours of load."""
SETTINGS = {
    "qwq": {"tp": 2, "pp": 2, "length": 16384},
    "RAM": {"tp": 8, "tiers": [("ram", 800 * GIB)], "chunk": 256},
    "disk": {"tp": 8, "tiers": [("disk", 40_000 * GIB)], "chunk": 256},
    "switches": {"pp": 2, "executor": "ray", "channel": "compiled-graph"},
    "settings": {"pp": 2, "executor": "ray", "channel": "ring"},
}
"""What a line of settings comes to, by a word of its reason, else of its command."""


ALL = list(commands())
OURS = [one for one in ALL if one.outcome != "other"]
SERVE = [one for one in OURS if "serve" in one.words[:2] and "bench" not in one.words]
LOADS = [
    one
    for one in OURS
    if one.words[0] == "genai-perf" or "benchmark_serving" in one.words[1] or "bench" in one.words
]
CURLS = [one for one in OURS if one.words[0] == "curl"]
LATENCY = [one for one in OURS if "benchmark_latency" in one.words[1]]
Sims = Callable[[str], str]


def test_every_command_is_tried_or_another_program_s() -> None:
    tried = [*SERVE, *LOADS, *CURLS, *LATENCY]
    assert sorted(one.name for one in tried) == sorted(one.name for one in OURS)
    assert {one.source for one in OURS} == {"000", "001", "002", "003"}


@pytest.fixture(scope="module")
def sims() -> Iterator[Sims]:
    """`sims(model)`: the URL of a server of this name."""
    found: dict[str, str] = {}
    with ExitStack() as stack:

        def start(model: str) -> str:
            if model not in found:
                words = ("sim", "--profile", "instant", "--served-model-name", model)
                child = subprocess.Popen(
                    [sys.executable, "-m", "penstock", *words], stdout=subprocess.PIPE, text=True
                )
                stack.callback(child.wait, HANG)
                stack.callback(child.terminate)
                assert child.stdout is not None
                line = next(line for line in child.stdout if "listening" in line)
                found[model] = line.split()[-1]
            return found[model]

        yield start


def value(words: tuple[str, ...], *flags: str) -> str:
    return next((words[at + 1] for at, word in enumerate(words) if word in flags), "")


@pytest.mark.parametrize("command", LOADS, ids=lambda one: one.name)
def test_a_load_runs(
    command: Command,
    sims: Sims,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every flag as it is there; addresses, files and amounts are this test's."""
    monkeypatch.chdir(tmp_path)
    url = sims(value(command.words, "--served-model-name") or value(command.words, "--model", "-m"))
    host, port = url.removeprefix("http://").split(":")
    file = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "a b c d e f"}, {"from": "gpt", "value": "g h i j k"}]
    file.write_text(json.dumps([{"conversations": turns}] * 4))
    place = {"--host": host, "--port": port, "-u": url, "--dataset-path": str(file)}
    given = list(command.words[next(i for i, w in enumerate(command.words) if w[0] == "-") :])
    for at, word in enumerate(given):
        if word in place or word in FEW:
            given[at + 1] = {**place, **FEW}[word]
    if not {"--host", "-u"} & set(given):
        given += ["--host", host, *([] if "--port" in given else ["--port", port])]
    if command.words[0] == "genai-perf":
        given += ["--request-count", "4"]
    assert main(["bench", "serve", *given]) == 0
    said = capsys.readouterr()
    assert re.search(r"Successful requests: +4 *\n", said.out)
    assert ("--trust-remote-code is ignored" in said.err) == ("--trust-remote-code" in given)
    ignored = "--dataset-path" in given and "random" in given
    assert ("--dataset-path is ignored" in said.err) == ignored
    if "--save-result" in given:
        assert len(list(tmp_path.rglob("*qps*.json"))) == 1


@pytest.mark.parametrize("command", CURLS, ids=lambda one: one.name)
def test_a_request_is_answered(command: Command, sims: Sims) -> None:
    body = json.loads(value(command.words, "-d"))
    path = next(word for word in command.words if "/v1/" in word).partition("/v1/")[2]
    asked = urllib.request.Request(
        f"{sims(body['model'])}/v1/{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=HANG) as answer:
        assert json.load(answer)["choices"]


@pytest.mark.parametrize("command", SERVE, ids=lambda one: one.name)
def test_settings_of_a_server(command: Command) -> None:
    words = list(command.words[command.words.index("serve") :])
    if command.outcome == "refused":
        with pytest.raises(PenstockError) as caught:
            gather(settings(parser().parse_args(words)), None, command.environ)
        assert str(caught.value).startswith(command.reason.partition(":")[0])
        return
    raw = gather(settings(parser().parse_args(words)), None, command.environ)
    engine = resolve(raw, words[1], "m").engine
    text = f"{command.reason} {' '.join(command.words)}"
    wanted = next(found for word, found in SETTINGS.items() if word in text)
    parallel, tiers = engine.parallel, engine.tiers
    found = {
        "tp": parallel.tensor,
        "pp": parallel.pipeline,
        "length": engine.model.max_model_len,
        "tiers": [(tier.kind, tier.size_bytes) for tier in tiers.tiers],
        "chunk": tiers.chunk_tokens,
        "executor": parallel.backend,
        "channel": parallel.ray_channel,
    }
    assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize("command", LATENCY, ids=lambda one: one.name)
def test_a_latency_of_random_weights_runs(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every flag as it is there; the model is small, and its ranks are processes without Ray."""
    shutil.copy(HERE.parent / "fixtures/tiny/qwen2/config.json", tmp_path)
    own = {
        "--model": str(tmp_path),
        "--distributed-executor-backend": "mp",
        "--num-iters": "3",
        "--num-iters-warmup": "1",
    }
    given = list(command.words[2:])
    for at, word in enumerate(given):
        if word in own:
            given[at + 1] = own[word]
    few = ["--input-len", "8", "--output-len", "4", "--batch-size", "2"]
    assert main(["bench", "latency", *given, *few]) == 0
    assert "Avg latency: " in capsys.readouterr().out


def test_objects_of_a_gateway_are_read_and_converted(capsys: pytest.CaptureFixture[str]) -> None:
    path = HERE / "source-000-gateway.yaml"
    assert main(["route", "lint", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.count("is not looked at") == 5
    assert "1 rules for models, 0 objectives, 0 errors" in said
    assert main(["route", "lint", "--convert", str(path)]) == 0
    found = {each["kind"]: each for each in yaml.safe_load_all(capsys.readouterr().out) if each}
    pool = found["InferencePool"]
    assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
    labels = {"app": "distributed-serving", "release": "qwq-dist-v1", "role": "leader"}
    assert pool["spec"]["selector"] == {"matchLabels": labels}
    assert pool["spec"]["targetPorts"] == [{"number": 8000}]
    picker = pool["spec"]["endpointPickerRef"]
    assert (picker["name"], picker["failureMode"]) == ("inference-gateway-ext-proc", "FailClose")
    assert found["InferenceObjective"]["spec"]["priority"] == 1
    (rule,) = found["InferenceModelRewrite"]["spec"]["rules"]
    assert rule["targets"] == [{"modelRewrite": "qwq", "weight": 100}]
