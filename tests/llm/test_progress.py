"""The progress bar of a batch."""

from __future__ import annotations

import io
from typing import Any

import pytest

from penstock.llm.progress import Bar, open_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_that_grows() -> None:
    stream, now = Terminal(), [0.0]
    bar = Bar(4, "Processed prompts", stream, lambda: now[0])
    for _ in range(4):
        now[0] += 0.5
        bar.ended(10, 5)
    bar.close()
    drawn = stream.getvalue().split("\r\x1b[K")[1:]
    assert [line.split("|")[0] for line in drawn[:3]] == [
        "Processed prompts:   0%",
        "Processed prompts:  25%",
        "Processed prompts:  50%",
    ]
    assert drawn[-1] == (
        "Processed prompts: 100%|####################| 4/4 [00:02, 2.00 it/s, "
        "input: 20.00 toks/s, output: 10.00 toks/s]\n"
    )


def test_a_file_gets_one_line() -> None:
    stream, now = io.StringIO(), [0.0]
    bar = Bar(2, "Processed prompts", stream, lambda: now[0])
    now[0] = 1.0
    bar.ended(10, 5)
    bar.close()
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().startswith("Processed prompts:  50%|##########          | 1/2 ")


def test_a_class_like_tqdm_does_it_instead() -> None:
    seen: list[Any] = []

    class Mine:
        def __init__(self, **options: object) -> None:
            seen.append(options["total"])

        def update(self, count: int) -> None:
            seen.append(count)

        def close(self) -> None:
            seen.append("closed")

    bar = open_progress(Mine, 2)
    bar.ended(10, 5)
    bar.close()
    assert seen == [2, 1, "closed"]


def test_nothing_is_shown_where_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    for wanted, total in ((False, 3), (True, 0)):
        bar = open_progress(wanted, total)
        bar.ended(10, 5)
        bar.close()
    assert capsys.readouterr() == ("", "")
