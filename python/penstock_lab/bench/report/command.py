"""`penstock bench report DIR`: result files to a page, pictures and Markdown."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock.core import PenstockError
from penstock_lab.bench.report import drawing
from penstock_lab.bench.report.compose import compose
from penstock_lab.bench.report.document import Document
from penstock_lab.bench.report.files import read
from penstock_lab.bench.report.markdown import markdown
from penstock_lab.bench.report.page import page
from penstock_lab.bench.report.runs import collect
from penstock_lab.bench.report.wording import count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a page, pictures and Markdown about the result files (*.json) of a directory: "
        "those of Penstock's benchmark and those of `vllm bench serve`. Charts need the extra "
        "penstock[plot]."
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="where the result files are")
    parser.add_argument(
        "--output",
        metavar="STEM",
        type=Path,
        help="path without a suffix: STEM.html, STEM.md and STEM-CHART.png are written (default: "
        "DIR/report)",
    )
    parser.add_argument("--title", help="heading of the page (default: that of the comparison)")
    parser.add_argument(
        "--baseline", metavar="NAME", help="server that ratios refer to (default: the comparison's)"
    )


def run(parsed: argparse.Namespace) -> int:
    """Write the report and print the names of its files.

    Raises:
        PenstockError: there is nothing to report, or it cannot be written.
        InvalidValueError: the baseline is not a server.
    """
    found = read(parsed.directory)
    for skipped in found.skipped:
        print(f"{skipped.name} {skipped.reason}; left out", file=sys.stderr)
    if not found.results:
        raise PenstockError(
            f"{parsed.directory} holds no result file (*.json): "
            "write some with `penstock bench serve --save-result`"
        )
    document = compose(collect(found), parsed.title, parsed.baseline)
    stem: Path = parsed.output or parsed.directory / "report"
    try:
        _write(document, stem)
    except OSError as error:
        raise PenstockError(f"cannot write the report: {error}") from error
    return 0


def _write(document: Document, stem: Path) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, drawing.Picture] = {}
    try:
        pictures = drawing.draw(document.charts)
    except drawing.MissingExtraError as error:
        print(f"no charts: {error}", file=sys.stderr)
    names = drawing.write(pictures, stem)
    texts = {".html": page(document, pictures), ".md": markdown(document, names)}
    for suffix, text in texts.items():
        path = stem.with_name(stem.name + suffix)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path} ({len(text.encode()) / 1024:,.0f} KiB)")
    if pictures:
        print(f"wrote {count(len(pictures), 'picture')} ({stem}-*.png)")
