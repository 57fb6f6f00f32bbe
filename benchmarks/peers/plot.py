"""The comparison as bars: a panel for each workload, a bar for each contender. SVG for light and dark."""

from collections.abc import Sequence
from html import escape

WIDTH = 720
LABEL, VALUE = 130, 90
BAR, GAP, HEADING = 18, 6, 34
STYLE = (
    "text{font:13px sans-serif;fill:#24292f}.h{font-weight:600}.own{fill:#0a7d5a}.peer{fill:#8b98a5}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.own{fill:#3fb68b}.peer{fill:#6e7681}}"
)

Panel = tuple[str, Sequence[tuple[str, float]]]
"""A heading and (contender, number) pairs; higher is better."""


def bars(title: str, panels: Sequence[Panel]) -> str:
    """An SVG document; the first contender of each panel is drawn as our own."""
    parts: list[str] = []
    y = 30
    for heading, values in panels:
        parts.append(f'<text class="h" x="0" y="{y + 20}">{escape(heading)}</text>')
        y += HEADING
        most = max((value for _, value in values), default=0.0)
        for index, (name, value) in enumerate(values):
            length = (WIDTH - LABEL - VALUE) * value / most if most else 0
            text_y = y + BAR - 5
            kind = "own" if index == 0 else "peer"
            parts += [
                f'<text x="0" y="{text_y}">{escape(name)}</text>',
                f'<rect class="{kind}" x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2"/>',
                f'<text x="{LABEL + length + 6:.1f}" y="{text_y}">{value:,.0f}</text>',
            ]
            y += BAR + GAP
        y += GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" '
        f'role="img" aria-label="{escape(title, quote=True)}"><style>{STYLE}</style>'
        f'<text class="h" x="0" y="18">{escape(title)}</text>'
    )
    return head + "".join(parts) + "</svg>\n"
