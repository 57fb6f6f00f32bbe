"""What `penstock chat` makes of a model's text, of settings and of files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")

from penstock.cli.chat.client import ChatClient, ChatError, Measures
from penstock.cli.chat.commands import Commands, Leave
from penstock.cli.chat.conversation import Conversation
from penstock.cli.chat.markdown import Markdown, Plain
from penstock.cli.chat.terminal import Completer, History, files, refuse_images
from tests.cli.chat_terminal import Scripted

HOSTILE = "\x1b]0;title\x07a\x1b[2Jb\x9b1;1Hc\r\x08\x00d\x1b[31m\ud800"
STYLES = re.compile(r"\x1b\[[012]m")


def shown(text: str, width: int = 21, styled: bool = False, piece: int = 1) -> str:
    markdown = Markdown(lambda: width, styled)
    pieces = [text[at : at + piece] for at in range(0, len(text), piece)]
    return "".join(map(markdown.feed, pieces)) + markdown.end()


def test_lines_end_between_words() -> None:
    text = "One two three four five six seven eight.\n\nA second paragraph of words."
    wrapped = shown(text)
    assert wrapped == (
        "One two three four\nfive six seven\neight.\n\nA second paragraph\nof words."
    )
    assert max(map(len, wrapped.split("\n"))) <= 20


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_the_pieces_of_an_answer_do_not_matter(piece: int) -> None:
    text = "# A `head`\n\n- an *item* of `code and` words, long enough\n```py\nx = 1  # y\n```\nend"
    assert shown(text, styled=True, piece=piece) == shown(text, styled=True)


@pytest.mark.parametrize(
    ("text", "wrapped"),
    [
        ("- one two three four five", "- one two three four\n  five"),
        ("  12. one two three four five", "  12. one two three\n      four five"),
        ("a https://example.com/a/long/path b", "a\nhttps://example.com/a/long/path b"),
        ("```\none two three four five six\n```", "```\none two three four five six\n```"),
        ("\tone two three four", "\tone two\n        three four"),
        ("\u4e2d\u6587" * 8, "\u4e2d\u6587" * 5 + "\n" + "\u4e2d\u6587" * 3),
        ("e\u0301" * 20 + " x", "e\u0301" * 20 + "\nx"),
        ("x  y", "x  y"),
    ],
)
def test_lists_code_and_wide_characters_wrap_as_they_should(text: str, wrapped: str) -> None:
    assert shown(text) == wrapped


def test_headings_are_bold_and_code_is_dim() -> None:
    assert (
        shown("## Two words", styled=True)
        == "\x1b[1m##\x1b[0m \x1b[1mTwo\x1b[0m \x1b[1mwords\x1b[0m"
    )
    assert shown("#no heading", styled=True) == "#no heading"
    inline = shown("a `b c` d", styled=True)
    assert inline == "a \x1b[2m`\x1b[0m\x1b[2mb\x1b[0m \x1b[2mc\x1b[0m\x1b[2m`\x1b[0m d"
    fenced = shown("```py\n# x\n```\ny", styled=True)
    assert fenced == "\x1b[2m```py\x1b[0m\n\x1b[2m#\x1b[0m \x1b[2mx\x1b[0m\n\x1b[2m```\x1b[0m\ny"


@pytest.mark.parametrize("styled", [False, True])
def test_the_text_of_a_model_controls_no_terminal(styled: bool) -> None:
    text = f"# {HOSTILE}\n`{HOSTILE}`\n```\n{HOSTILE}"
    for out in (shown(text, styled=styled), Plain().feed(text)):
        rest = STYLES.sub("", out)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", rest)
        assert "]0;title" in rest


def test_a_word_without_end_is_not_held_back() -> None:
    markdown = Markdown(lambda: 21, styled=False)
    assert len(markdown.feed("x" * 1000)) >= 980


def talk_of(server: Scripted) -> tuple[Conversation, Commands, list[str]]:
    talk = Conversation(ChatClient(server.url, None, None, {"max_tokens": 7}), None)
    said: list[str] = []
    return talk, Commands(talk, said.append, at_terminal=True), said


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/set temperature hot", "temperature is hot, expected a number of at least 0"),
        ("/set temperature nan", "expected a number of at least 0"),
        ("/set top_p 0", "top_p is 0, expected a number above 0 and at most 1"),
        ("/set top_k -1", "expected an integer from 1, or 0 for all tokens"),
        ("/set min_p 1.5", "expected a number from 0 to 1"),
        ("/set max_tokens 0.5", "expected an integer of at least 1"),
        ("/set seed -1", "expected an integer from 0 to 2^63 - 1"),
        ("/set temprature 1", "no setting temprature; did you mean temperature?"),
        ("/model gamma", "no model gamma"),
        ("/model alpa", "did you mean alpha?"),
        ("/retry", "there is no question to ask again"),
        ("/load", "/load needs the name of a file"),
        ("/load /nowhere", "/nowhere: No such file"),
        ("/save -f", "/save needs the name of a file"),
        ("/clera", "no command /clera; did you mean /clear?"),
    ],
)
def test_a_wrong_command_names_the_remedy(line: str, told: str) -> None:
    with Scripted() as server:
        _, commands, said = talk_of(server)
        with pytest.raises(ChatError, match=re.escape(told)):
            commands.run(line)
    assert said == []


def test_settings_and_the_model_are_those_of_the_next_request() -> None:
    with Scripted() as server:
        talk, commands, said = talk_of(server)
        for line in ("/set top_p 0.5", "/set seed 3", "/set max_tokens", "/model beta"):
            commands.run(line)
        assert list(talk.answer("hello")) == ["well"]
        commands.run("/model")
        commands.run("/set")
    (body,) = server.seen
    assert (body["top_p"], body["seed"], body["model"]) == (0.5, 3, "beta")
    assert "max_tokens" not in body
    assert said[4:6] == [
        "  alpha (2048 tokens of context)",
        "* beta (2048 tokens of context)",
    ]
    assert "top_p 0.5" in said
    assert "min_p (as the server has it)" in said


def test_an_answer_is_asked_for_again_without_the_first() -> None:
    with Scripted([["one"], ["two"], ["three"]]) as server:
        talk, commands, _ = talk_of(server)
        list(talk.answer("a"))
        list(talk.answer("b"))
        answer = commands.run("/retry")
        assert answer is not None
        assert list(answer) == ["three"]
        commands.run("/clear")
        with pytest.raises(ChatError):
            commands.run("/retry")
    contents = [[message["content"] for message in body["messages"]] for body in server.seen]
    assert contents == [["a"], ["a", "one", "b"], ["a", "one", "b"]]


def test_a_server_that_does_not_count_is_asked_without() -> None:
    with Scripted(counts=False) as server:
        talk, commands, said = talk_of(server)
        assert list(talk.answer("a")) == ["well"]
        assert list(talk.answer("b")) == ["well"]
        commands.run("/stats")
    assert [("stream_options" in body) for body in server.seen] == [False, False]
    assert said[0].startswith("2 answers: 0 tokens of prompts")
    assert said[1].startswith("last answer: first after ")


def test_a_conversation_goes_on_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    with Scripted() as server:
        talk, commands, said = talk_of(server)
        commands.run("/system Be brief.")
        list(talk.answer("a"))
        commands.run("/set seed 3")
        commands.run(f"/save {file}")
        with pytest.raises(ChatError, match=f"exists: `/save -f {re.escape(str(file))}` replaces"):
            commands.run(f"/save {file}")
        assert len(json.loads(file.read_text())["messages"]) == 3
        list(talk.answer("b"))
        commands.run(f"/save -f {file}")
        assert list(tmp_path.iterdir()) == [file]
        other, commands, said = talk_of(server)
        commands.run("/model beta")
        commands.run(f"/load {file}")
        assert said[-2:] == [
            f"4 messages from {file}",
            "they are of the model alpha; beta answers now",
        ]
        assert (other.system, other.messages) == ("Be brief.", talk.messages)
        assert other.client.settings == {"max_tokens": 7, "seed": 3}
        answer = commands.run("/retry")
        assert answer is not None
        list(answer)
    assert [message["content"] for message in server.seen[-1]["messages"]] == [
        "Be brief.",
        *("a", "well", "b"),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("\x89PNG", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "there is no list `messages`"),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "messages[0].role is 'tool'"),
        ('{"messages": [3]}', "messages[0].role is None"),
        (
            '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "messages[0].content is not text, and chat has no images",
        ),
        ('{"messages": [], "settings": {"top_p": 3}}', "top_p is 3, expected a number above 0"),
        ('{"messages": [], "settings": {"seed": true}}', "seed is True"),
        ('{"messages": [], "settings": {"x": 1}}', "no setting x"),
    ],
)
def test_a_file_that_is_no_conversation_changes_nothing(
    text: str, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "talk.json"
    file.write_text(text)
    with Scripted() as server:
        talk, commands, _ = talk_of(server)
        list(talk.answer("a"))
        with pytest.raises(ChatError, match=re.escape(told)) as raised:
            commands.run(f"/load {file}")
        assert str(file) in str(raised.value)
        assert len(talk.messages) == 2


def test_errors_of_a_server_control_no_terminal() -> None:
    assert str(ChatError("no \x1b[2Jmodel\x07")) == "no [2Jmodel"


def test_the_rate_is_of_the_tokens_after_the_first() -> None:
    assert Measures(completion=11, first=3.0, rest=2.0).rate == 5.0
    assert Measures(completion=1, first=3.0, rest=0.0).rate is None
    assert Measures(first=3.0, rest=2.0).rate is None


def test_other_commands_do_not_load_the_line_editor() -> None:
    code = "import sys, penstock.cli.chat; sys.exit('readline' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_end_is_a_command() -> None:
    with Scripted() as server, pytest.raises(Leave):
        talk_of(server)[1].run("/exit")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("/s", ["/system", "/set", "/stats", "/save"]),
        ("/set t", ["temperature", "top_p", "top_k"]),
        ("/model ", ["alpha", "beta"]),
        ("/set se", ["seed "]),
        ("/set top_p ", []),
        ("see /s", []),
    ],
)
def test_tab_completes_commands_and_their_words(line: str, found: list[str]) -> None:
    with Scripted() as server:
        completer = Completer(talk_of(server)[1], lambda: line)
        word = line.rpartition(" ")[2]
        assert [completer(word, at) for at in range(len(found) + 1)] == [*found, None]


def test_tab_completes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "talks").mkdir()
    for name in ("talk.json", ".hidden", "talks/one.json"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert files("ta") == ["talk.json", "talks/"]
    assert files("talks/") == ["talks/one.json"]

    assert files("") == ["talk.json", "talks/"]
    assert files(f"{tmp_path}/.h") == [f"{tmp_path}/.hidden"]
    assert files("none/x") == []


def test_images_are_refused_by_name(tmp_path: Path) -> None:
    image = tmp_path / "my cat.PNG"
    image.touch()
    for text in (f"'{image}' what is this", f"{str(image).replace(' ', chr(92) + ' ')}\nwhat?"):
        with pytest.raises(ChatError, match=re.escape(f"{image} is an image")):
            refuse_images(text)
    refuse_images("how do I open cat.png? It's \"odd")


def test_a_question_of_several_lines_is_one_entry_of_the_history(tmp_path: Path) -> None:
    class Editor:
        def __init__(self) -> None:
            self.lines: list[str] = []

        def add_history(self, line: str) -> None:
            self.lines.append(line)

        def set_auto_history(self, _on: bool) -> None:
            pass

    path = tmp_path / "deep" / "history"
    first, second = History(path), History(path)
    for history, text in ((first, "one\ntwo"), (second, "three")):
        history.open(Editor())  # type: ignore[arg-type]
        history.add(text)
        history.add(text)
    first.keep()
    second.keep()
    assert path.stat().st_mode & 0o777 == 0o600
    editor = Editor()
    History(path).open(editor)  # type: ignore[arg-type]
    assert editor.lines == ["one\ntwo", "three"]
