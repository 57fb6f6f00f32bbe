"""Plot of the product's server compared with the benchmark's loop over the same backend.

    python benchmarks/gpu/plot.py build/gpu/results.json build/gpu/server.svg

Needs matplotlib: penstock[plot].
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.compared import Parts, beside_loops

BAR = 0.4
COLOURS = {"loop": "#9aa5b1", "server": "#1f6feb"}


def draw(found: Parts, path: Path) -> None:
    """Draw bars for the loads that were run both ways: the server's rate as a fraction of the
    loop's, and its tokens per second.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in beside_loops(found) if row["ratio"] is not None]
    figure, axes = pyplot.subplots(figsize=(1.5 + 1.4 * len(rows), 3.6), layout="constrained")
    for at, row in enumerate(rows):
        for side, (name, share) in enumerate((("loop", 1.0), ("server", row["ratio"]))):
            place = at + (side - 0.5) * BAR
            axes.bar(place, share, BAR, color=COLOURS[name], label=None if at else name)
            axes.text(place, share + 0.01, f"{row[f'{name} tok/s']:,.0f}", ha="center", fontsize=8)
    axes.set_xticks(range(len(rows)), [f"{row['model']}\n{row['load']}" for row in rows])
    axes.set_ylabel("output tokens/s, share of the loop")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path, help=".svg or .png")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.results.read_text())
    draw(found["parts"], options.picture)


if __name__ == "__main__":
    main()
