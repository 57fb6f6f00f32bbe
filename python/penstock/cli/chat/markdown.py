"""Shows a model's Markdown on a terminal: control characters removed, words wrapped, headings bold
and code dimmed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

BOLD = "\x1b[1m"
DIM = "\x1b[2m"
RESET = "\x1b[0m"

_FENCE = re.compile(r"```|~~~")
_HEADING = re.compile(r"#{1,6}")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_TICKS = re.compile(r"(`+)")
_BULLET = re.compile(r"[-*+]|\d{1,3}[.)]")
_TAB = 8
_INDENT = 16
"""Maximum indentation of the lines of a list item, in columns."""


def printable(text: str) -> str:
    """`text` without control characters, which a terminal would interpret, and without lone
    surrogates, which cannot be encoded.
    """
    return _UNPRINTABLE.sub("", text)


def columns(character: str) -> int:
    """Width of `character` on a terminal, in columns."""
    if character.isascii():
        return 1
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class Plain:
    """Shows text unchanged, except for control characters."""

    def feed(self, text: str) -> str:
        return printable(text)

    def end(self) -> str:
        """Remaining output at the end of the text."""
        return ""


class Markdown(Plain):
    """Wraps and styles Markdown that arrives in pieces. A word is held back until it is complete.
    Each piece of output ends without a style, so that it can stop anywhere.

    `width` returns the terminal's width in columns. Without `styled`, text is only wrapped.
    """

    def __init__(self, width: Callable[[], int], styled: bool) -> None:
        self._width = width
        self._styled = styled
        self._fence = ""
        self._closes = False
        self._new_line()

    def _new_line(self) -> None:
        if self._closes:
            self._fence, self._closes = "", False
        self._word = ""
        self._word_columns = 0
        self._spaces = ""
        self._column = 0
        self._indent = 0
        self._first = True
        self._heading = False
        self._code = False
        self._limit = max(self._width() - 1, 1)

    def feed(self, text: str) -> str:
        return "".join(map(self._take, printable(text)))

    def end(self) -> str:
        return self._flush()

    def _take(self, character: str) -> str:
        if character == "\n":
            out = self._flush() + "\n"
            self._new_line()
            return out
        if character in " \t":
            out = self._flush()
            self._spaces += character
            return out
        wide = columns(character)
        # Scripts with wide characters have no spaces between words, and a word that fills a line
        # cannot be moved to another line. In both cases output need not wait.
        out = self._flush() if wide == 2 or self._word_columns >= self._limit else ""
        self._word += character
        self._word_columns += wide
        return out

    def _flush(self) -> str:
        """Output for the completed word and the spaces before it."""
        if not self._word:
            return ""
        word, spaces, wide = self._word, self._spaces, self._word_columns
        self._word, self._spaces, self._word_columns = "", "", 0
        at = self._after(spaces)
        if self._first:
            self._begin(word, at)
        elif self._breaks(word, spaces) and at + wide > self._limit and not self._fence:
            spaces, at = "\n" + " " * self._indent, self._indent
        # The terminal itself wraps a word that is longer than a line.
        self._column = (at + wide) % (self._limit + 1)
        return spaces + (self._style(word) if self._styled else word)

    def _breaks(self, word: str, spaces: str) -> bool:
        """Whether a line may end before `word`."""
        return self._column > self._indent and (bool(spaces) or columns(word[0]) == 2)

    def _after(self, spaces: str) -> int:
        """The column after `spaces`."""
        column = self._column
        for space in spaces:
            column += 1 if space == " " else _TAB - column % _TAB
        return column

    def _begin(self, word: str, column: int) -> None:
        """Determine the type of a line (heading, list item, ...) from its first word."""
        self._first = False
        if self._fence:
            self._closes = word.startswith(self._fence)
        elif fence := _FENCE.match(word):
            self._fence = fence[0]
        else:
            self._heading = _HEADING.fullmatch(word) is not None
            bullet = len(word) + 1 if _BULLET.fullmatch(word) else 0
            self._indent = min(column + bullet, _INDENT, self._limit // 2)

    def _style(self, word: str) -> str:
        if self._fence or self._heading:
            return f"{DIM if self._fence else BOLD}{word}{RESET}"
        styled = []
        for part in filter(None, _TICKS.split(word)):
            ticks = part[0] == "`"
            styled.append(f"{DIM}{part}{RESET}" if ticks or self._code else part)
            self._code ^= ticks
        return "".join(styled)
