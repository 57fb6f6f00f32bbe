"""`bench serve` from flags to file and exit status, under a virtual clock."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock_lab.bench import client, flags
from tests.bench.servers import serving_model
from tests.fakes.load import Answer, PlayedRun, Serve, exact

RANDOM = (
    "--random-input-len",
    "8",
    "--random-output-len",
    "4",
    "--num-prompts",
    "6",
    "--prompt-ids",
    "--vocab-size",
    "1000",
)


@pytest.fixture
def server() -> Iterator[str]:
    with serving_model(root="org/m", max_model_len=64) as url:
        yield url


def play(
    monkeypatch: pytest.MonkeyPatch, serve: Serve = exact, **options: object
) -> list[PlayedRun]:
    runs: list[PlayedRun] = []

    def open_run(description: str) -> PlayedRun:
        runs.append(PlayedRun(description, serve, **options))  # type: ignore[arg-type]
        return runs[-1]

    monkeypatch.setattr(client, "native_run", open_run)
    return runs


def test_a_run_is_printed_and_kept(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = play(monkeypatch)
    words = ["--base-url", f"{server}/v1", *RANDOM, "--save-result", "--result-dir", str(tmp_path)]
    words += ["--header", "Authorization=Bearer k", "X-Team=a", "--metadata", "node=n1"]
    assert main(["bench", "serve", *words]) == 0
    assert "Serving Benchmark Result" in capsys.readouterr().out
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("openai-infqps-m-")
    text = path.read_text()
    assert "Bearer k" not in text
    kept = json.loads(text)
    assert (kept["completed"], kept["model_id"], kept["node"]) == (6, "org/m", "n1")
    assert "ttfts" not in kept
    assert kept["penstock"]["argv"][:2] == ["serve", "--base-url"]
    assert runs[0].target["headers"]["Authorization"] == "Bearer k"
    assert runs[0].target["path"] == "/v1/completions"


def test_details_and_appending(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch)
    for _ in range(2):
        words = ["--save-detailed", "--append-result", "--result-filename", str(tmp_path / "all")]
        assert main(["bench", "serve", "--base-url", server, *RANDOM, *words]) == 0
    lines = (tmp_path / "all").read_text().splitlines()
    assert [len(json.loads(line)["itls"]) for line in lines] == [6, 6]
    assert json.loads(lines[0])["generated_texts"][0] == "xxxx"


def test_interrupted(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, moments={0.5: lambda: os.kill(os.getpid(), signal.SIGINT)})
    words = ["--request-rate", "5", "--save-result", "--result-dir", str(tmp_path)]
    assert main(["bench", "serve", "--base-url", server, *RANDOM, *words]) == 130
    assert "Interrupted; requests not ended:" in capsys.readouterr().out
    (path,) = tmp_path.iterdir()
    kept = json.loads(path.read_text())
    assert kept["penstock"]["partial"]
    assert 0 < kept["completed"] < 6


def test_nothing_succeeded(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, lambda *_: Answer((), 0.1, failure="http_status", detail="500 broken"))
    assert main(["bench", "serve", "--base-url", server, *RANDOM]) == 1
    assert "http_status: 500 broken" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--endpoint", "/v1/chat/completions"],
        ["--endpoint", "v1/completions"],
        ["--backend", "openai-chat", "--endpoint", "/v1/completions"],
        ["--base-url", "ftp://x"],
        ["--header", "no equals sign"],
        ["--lora-modules", "a"],
    ],
)
def test_wrong_flags_exit_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        sys.exit(main(["bench", "serve", *words]))
    assert caught.value.code == 2
    assert words[-2] in capsys.readouterr().err


def test_the_key_of_the_environment_is_sent_unless_a_header_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flags, "openai_api_key", lambda: "k")
    assert dict(flags.headers([])) == {"Authorization": "Bearer k"}
    assert dict(flags.headers([("authorization", "mine")])) == {"authorization": "mine"}
    monkeypatch.setattr(flags, "openai_api_key", lambda: None)
    assert flags.headers([]) == ()


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--header", "A=b", "C=d", "--port", "1"], ["--header", "A=***", "C=***", "--port", "1"]),
        (["--header=A=b", "x"], ["--header=A=***", "x"]),
        (["--model", "A=b"], ["--model", "A=b"]),
    ],
)
def test_headers_are_left_out_of_a_kept_command_line(words: list[str], kept: list[str]) -> None:
    assert flags.redacted(words) == kept


def test_names_of_genai_perf_are_those_of_vllm(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies: list[dict[str, object]] = []

    def kept(index: int, body: dict[str, object]) -> Answer:
        bodies.append(body)
        return exact(index, body)

    play(monkeypatch, kept)
    host = server.removeprefix("http://")
    words = ["-u", host, "-m", "m", "--endpoint-type", "completions", "--streaming"]
    words += ["--synthetic-input-tokens-mean", "8", "--output-tokens-mean", "4"]
    words += ["--concurrency", "3", "--request-count", "6", "--extra-inputs", "min_tokens:4"]
    words += ["--extra-inputs", '{"top_k": 5}', "--measurement-interval", "1000", "--random-seed=7"]
    assert main(["bench", "serve", *words, "--prompt-ids", "--vocab-size", "1000"]) == 0
    theirs = list(bodies)
    bodies.clear()
    printed, said = capsys.readouterr()
    assert "--streaming is ignored" in said
    assert "Windows" in printed
    words = ["--base-url", server, "--model", "m", "--max-concurrency", "3", "--seed", "7", *RANDOM]
    extra = ["--extra-body", '{"min_tokens": 4, "top_k": 5}']
    assert main(["bench", "serve", *words, *extra]) == 0
    assert bodies == theirs
    assert len(theirs) == 6
    assert {(body["min_tokens"], body["top_k"]) for body in theirs} == {(4, 5)}


@pytest.mark.parametrize("flag", ["--lora-modules", "--hf-split", "--plot-timeline"])
def test_flags_that_mean_nothing_here_fail_by_name(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "serve", flag, "x"])
    assert ended.value.code == 2
    assert flag in capsys.readouterr().err
