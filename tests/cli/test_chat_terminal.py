"""`penstock chat` at a pseudo-terminal that has readline: paste, quotes, Tab, styles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")
pytest.importorskip("readline", reason="this Python has no line editing")

import readline

from tests.cli.chat_terminal import Scripted, Terminal

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif("libedit" in (readline.__doc__ or ""), reason="libedit knows no paste"),
]

ANSWER = ["# Ti", "tle\nsome `co", "de` \x1b]0;owned\x07and \x1b[2Jmore words than fit"]
STYLED = {"TERM": "xterm", "COLUMNS": "30", "NO_COLOR": ""}
PROMPT = "> \x1b[0m"


def test_a_pasted_text_is_one_question_and_recalled_as_one(tmp_path: Path) -> None:
    with Scripted() as server:
        terminal = Terminal(tmp_path, "--url", server.url, **STYLED)
        terminal.until(PROMPT)
        terminal.type("\x1b[200~one\rtwo\r\rthree\x1b[201~\r")
        terminal.until("context 101 of 2048 tokens (5%)]")
        terminal.until(PROMPT)
        terminal.type("\x1b[A\r")
        terminal.until("context 101 of 2048")
        terminal.until(PROMPT)
        terminal.type("\x04")
        assert terminal.end() == 0
    assert server.asked() == ["one\ntwo\n\nthree"] * 2
    assert (tmp_path / "chat_history").read_bytes() == b"one\rtwo\r\rthree\n"


def test_lines_between_quotes_are_one_question(tmp_path: Path) -> None:
    with Scripted() as server:
        terminal = Terminal(tmp_path, "--url", server.url)
        terminal.until("> ")
        terminal.type('"""one\n')
        terminal.until("... ")
        terminal.type("/two\n")
        terminal.until("... ")
        terminal.type('three"""\n')
        terminal.until("2048")
        terminal.until("> ")
        terminal.type('"""given up\n')
        terminal.until("... ")
        terminal.type("\x04")
        terminal.until("> ")
        terminal.type("/exit\n")
        assert terminal.end() == 0
    assert server.asked() == ["one\n/two\nthree"]


def test_an_answer_is_styled_wrapped_and_controls_nothing(tmp_path: Path) -> None:
    with Scripted([ANSWER]) as server:
        terminal = Terminal(tmp_path, "--url", server.url, **STYLED)
        terminal.until(PROMPT)
        terminal.type("hi\r")
        terminal.until("hi\r\n")
        seen = terminal.until("\x1b[2m[3 tokens")
        terminal.until(PROMPT)
        terminal.type("/exit\r")
        assert terminal.end() == 0
    answer = seen[seen.index("\x1b[1m") :]
    assert answer.startswith("\x1b[1m#\x1b[0m \x1b[1mTitle\x1b[0m\nsome \x1b[2m`\x1b[0m")
    text = re.sub(r"\x1b\[[012]m", "", answer)
    assert text == "# Title\nsome `code` ]0;ownedand\n[2Jmore words than fit\n"


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {**STYLED, "NO_COLOR": "1"}])
def test_plain_terminals_get_plain_text(variables: dict[str, str], tmp_path: Path) -> None:
    with Scripted([ANSWER]) as server:
        terminal = Terminal(tmp_path, "--url", server.url, **variables)
        terminal.until("> ")
        terminal.type("hi\r")
        terminal.until("# Title")
        seen = terminal.until("[3 tokens")
        terminal.until("> ")
        terminal.type("/exit\r")
        assert terminal.end() == 0
    assert "\x1b" not in seen
    assert "some `code` ]0;owned" in seen


def test_tab_and_an_image(tmp_path: Path) -> None:
    image = tmp_path / "cat.png"
    image.touch()
    with Scripted() as server:
        terminal = Terminal(tmp_path, "--url", server.url)
        terminal.until("> ")
        terminal.type("/mod\tbe\t\n")
        terminal.until("beta answers from here on")
        terminal.until("> ")
        terminal.type(f"{image} what is this?\n")
        terminal.until(f"error: {image} is an image, and chat sends text only")
        terminal.until("> ")
        terminal.type("/exit\n")
        assert terminal.end() == 0
    assert server.seen == []
