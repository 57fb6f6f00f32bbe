"""Colours of the page: enough contrast in light and dark mode, nothing fetched."""

import re

import pytest

from penstock_lab.bench.report import drawing
from penstock_lab.bench.report.page import style_sheet

LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#\w{6})", block))
    for block in style_sheet().split("@media", 2)[:2]
)


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = [
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    ]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_contrast(colours: dict[str, str]) -> None:
    for name in ("text", "quiet", "good", "bad", "link"):
        for ground in ("page", "card"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    assert contrast(colours["warn-text"], colours["warn-page"]) >= 4.5


def test_the_style_sheet_fetches_nothing_and_knows_dark_print_and_phones() -> None:
    sheet = style_sheet()
    assert not re.search(r"url\(|@import|@font-face|https?:", sheet)
    assert "prefers-color-scheme: dark" in sheet
    assert "@media print" in sheet
    assert re.search(r"max-width: 6\d\dpx", sheet)


def test_styles_of_series_differ_by_more_than_colour_and_stand_out() -> None:
    for looks in (drawing.COLOURS, drawing.MARKERS, drawing.DASHES):
        assert len(set(looks)) == drawing.STYLES
    for colour in (*drawing.COLOURS, *(colour for _, colour, _ in drawing.PARTS)):
        assert contrast(colour, "#ffffff") >= 3, colour
