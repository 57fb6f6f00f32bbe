"""`penstock chat` against the simulator and the default model: in a pipe, and at a terminal."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")

from penstock.cli.chat.command import StartUp
from penstock.cli.chat.markdown import printable
from tests.cli.chat_terminal import Terminal, command, environment
from tests.e2e.server import eventually, metric
from tests.e2e.sim import Sim
from tests.limits import HANG

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    with Sim("--profile", "fast", "--answer-tokens", "8:0") as started:
        yield started


def piped(home: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        input=text,
        capture_output=True,
        text=True,
        timeout=HANG,
        env=environment(home),
        check=False,
    )


def test_a_pipe_gets_an_answer_for_each_line(sim: Sim, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    lines = ["first", "", "/system Be brief.", "second", "third", f"/save {file}", "/exit", "late"]
    done = piped(tmp_path, "\n".join(lines), "--url", sim.url)
    assert (done.returncode, done.stderr) == (0, "")
    answers = done.stdout.splitlines()
    assert len(answers) == 3
    kept = json.loads(file.read_text())
    assert kept["model"] == "sim"
    assert [message["role"] for message in kept["messages"]] == [
        "system",
        *("user", "assistant") * 2,
    ]
    assert [message["content"] for message in kept["messages"][2::2]] == answers[1:]
    assert kept["messages"][0]["content"] == "Be brief."


def test_the_system_prompt_of_the_command_line_can_be_shown(sim: Sim, tmp_path: Path) -> None:
    done = piped(tmp_path, "/system\n/reset\n/system", "--url", f"{sim.url}/v1", "--system", "Hum.")
    assert done.stdout == "Hum.\nHum.\n"


@pytest.mark.parametrize(
    ("words", "text", "said"),
    [
        (["other"], "hello", "other"),
        ([], "/rest", "no command /rest; did you mean /reset?"),
        ([], "/save", "/save needs the name of a file"),
        ([], "/save /nowhere/at/all", "/nowhere/at/all: No such file"),
        (["--max-tokens", "-3"], "hello", "max_tokens"),
    ],
)
def test_an_error_is_one_line_and_the_status(
    words: list[str], text: str, said: str, sim: Sim, tmp_path: Path
) -> None:
    done = piped(tmp_path, text, "--url", sim.url, *words)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("penstock: error: ")
    assert said in line


@pytest.mark.parametrize("fault", ["error-event", "cut", "refuse"])
def test_an_answer_that_fails_is_one_line_and_forgotten(fault: str, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    with Sim("--profile", "fast", "--fault", fault) as failing:
        done = piped(tmp_path, f"hello\n/save {file}\n", "--url", failing.url)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("penstock: error: ")
    messages = json.loads(file.read_text())["messages"]
    assert [message["role"] for message in messages] in ([], ["user", "assistant"])


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    done = piped(tmp_path, "", "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "http://127.0.0.1:9 cannot be reached" in done.stderr
    assert piped(tmp_path, "", "--url", "ftp://x").returncode == 2


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    done = piped(tmp_path, "hello", str(tmp_path / "none.gguf"))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "none.gguf: no such file" in line


def test_a_conversation_at_a_terminal(sim: Sim, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "--url", sim.url)
    assert "sim: /help has the commands" in terminal.until("> ")
    terminal.type("hello\n")
    answer, _, measures = terminal.until("> ").split("hello\n", 1)[1].partition("\n")
    assert len(answer.split()) == 7  # and the token that ends a text
    assert measures.startswith("[8 tokens, ")
    assert measures.endswith(", context 11 of 8192 tokens (0%)]\n")
    terminal.type("/nonsense\n")
    assert "error: no command /nonsense" in terminal.until("> ")
    terminal.type("half a line")
    terminal.until("half a line")
    assert "[Ctrl-D or /exit leaves]" in terminal.interrupt()
    terminal.type("\x04")
    assert terminal.end() == 0
    kept = (tmp_path / "chat_history").read_text().splitlines()
    assert kept[-2:] == ["hello", "/nonsense"]
    again = Terminal(tmp_path, "--url", sim.url)
    again.until("> ")
    again.type("\x1b[A\x1b[A\n")  # Twice up: the line before the last.
    again.until("\r\n")
    assert len(again.until("\r\n").split()) == 7
    again.until("> ")
    again.type("/exit\n")
    assert again.end() == 0


def test_ctrl_c_stops_an_answer_and_keeps_the_part(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    with Sim("--profile", "default", "--answer-tokens", "100000:0") as slow:
        terminal = Terminal(tmp_path, "--url", slow.url, "--max-tokens", "7000")
        terminal.until("> ")
        terminal.type("hello\n")
        terminal.until("hello\r\n")
        terminal.until(" ")
        terminal.type("\x03")
        terminal.until("[stopped; Ctrl-D or /exit leaves]\r\n> ")
        terminal.type(f"/save {file}\n/exit\n")
        assert terminal.end() == 0
        with slow.client() as client:
            eventually(lambda: metric(client, "vllm:num_requests_running") == 0, "an idle server")
    messages = json.loads(file.read_text())["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert 0 < len(messages[1]["content"].split()) < 7000


def test_a_model_of_its_own_is_started_and_stopped(model_file: Path, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, str(model_file), "--temperature", "0", "--max-tokens", "12")
    terminal.until("> ")
    (server,) = [int(pid) for pid in children(terminal.pid)]
    terminal.type("Tell me the capital of France.\n")
    answer = terminal.until("> ").split(".\n", 1)[1]
    assert "Paris" in answer
    terminal.type("\x04")
    assert terminal.end() == 0
    assert not Path(f"/proc/{server}").exists()


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_what_a_terminal_would_obey_is_left_out() -> None:
    assert printable("a\x1b[31mb\x07\r\n\tc\x9b2J\x7f \u00e9") == "a[31mb\n\tc2J \u00e9"


def test_a_terminal_shows_what_a_server_that_starts_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with (tmp_path / "log").open("wb+", buffering=0) as log:
        with StartUp(log) as shown:
            shown.look()
            log.write(b"2026-11-26T17:10:02.973Z INFO penstock.engine: loading weights: 15%\n")
            shown.look()
            shown.look()
            assert log.tell() == (tmp_path / "log").stat().st_size, (
                "the server writes on from there"
            )
        assert capsys.readouterr().err == "\r\x1b[Kloading weights: 15%\r\r\x1b[K"
