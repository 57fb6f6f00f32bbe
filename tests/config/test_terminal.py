"""What the environment says about the terminal."""

from __future__ import annotations

import pytest

from penstock.config.terminal import has_styles, moves_cursor


@pytest.mark.parametrize(
    ("environ", "moves", "styles"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "0"}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({}, False, False),
    ],
)
def test_plain_terminals(environ: dict[str, str], moves: bool, styles: bool) -> None:
    assert (moves_cursor(environ), has_styles(environ)) == (moves, styles)
