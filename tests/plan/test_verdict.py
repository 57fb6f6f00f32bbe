"""The verdict: whether a model fits, and what to change where it does not."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.config.terminal import draws_blocks
from penstock_ops.plan.arrivals import poisson
from penstock_ops.plan.calibration import shipped
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import Load, engine
from penstock_ops.plan.hardware import parse_target
from penstock_ops.plan.offers import offers
from penstock_ops.plan.prices import preferred
from penstock_ops.plan.search import Goal, Question, Speed, spoken
from tests.plan.conftest import FP8, R1, Model

LOAD = ["--isl", "500", "--osl", "100", "--requests", "60"]


def tried(printed: str) -> list[tuple[list[str], int]]:
    """The flags of each suggestion, and the devices that it fits on."""
    _, _, rest = printed.partition("\nTry:\n")
    rows = re.findall(r"^  (-\S.*?)  +fits on (\d+)", rest, re.MULTILINE)
    return [(shlex.split(flags), int(devices)) for flags, devices in rows]


@pytest.mark.parametrize(
    ("name", "words", "verdict", "flags"),
    [
        (
            R1,
            ["--on", "h100:4"],
            r"lacks 89\.\d\d GiB on each of 4 H100 SXM \(TP4\)\.",
            ["--on h100:16"],
        ),
        (
            "meta-llama/Meta-Llama-3.1-70B",
            ["--on", "h100"],
            r"\(bf16, 131\.42 GiB\) lacks 62\.57 GiB on 1 H100 SXM\.",
            ["--weights fp8", "--on h100:2"],
        ),
        (
            "meta-llama/Meta-Llama-3.1-70B",
            ["--on", "h100:8", "-tp", "1"],
            r"on 1 H100 SXM\.",
            ["--weights fp8", "-tp 2 -pp 1"],
        ),
        (
            "meta-llama/Meta-Llama-3.1-70B",
            ["--on", "azure-nd96isr-h100-v5", "-tp", "2", "--max-model-len", "131072"],
            r"lacks .* on each of 2 H100 SXM \(TP2\) for one sequence of 131,072 tokens\.",
            ["--weights fp8", "--kv-cache-dtype fp8", "-tp 4 -pp 1"],
        ),
    ],
)
def test_what_is_suggested_fits(
    directory: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    name: str,
    words: list[str],
    verdict: str,
    flags: list[str],
) -> None:
    """Each suggestion is tried as it is printed."""
    path = str(directory(name, **({"quantization_config": FP8} if name == R1 else {})))
    assert main(["plan", path, *words]) == 1
    printed = capsys.readouterr().out
    assert re.match(f"Does not fit: .*{verdict}\n", printed)
    found = tried(printed)
    assert {" ".join(each) for each, _ in found} >= set(flags) - {"--kv-cache-dtype fp8"}
    for each, devices in found:
        assert main(["plan", path, *words, *each]) == 0
        assert capsys.readouterr().out.startswith(f"Fits: {devices} of ")


def test_a_length_that_fits_is_named(
    directory: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", str(directory("meta-llama/Meta-Llama-3.1-70B")), "--on", "h100:2"]
    assert main(words) == 0
    said = re.match(
        r"Fits: 2 of 2 H100 SXM \(TP2\)\. Sequences of up to ([\d,]+) of the model's 131,072 "
        r"tokens: serve with (--max-model-len \d+)\.\n",
        capsys.readouterr().out,
    )
    assert said
    assert main([*words, *said[2].split()]) == 0
    assert f" 1 sequence of {said[1]} tokens at once." in capsys.readouterr().out


def test_what_meets_the_goal_is_suggested(
    directory: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(directory("meta-llama/Meta-Llama-3.1-70B"))
    words = ["--on", "h100:4", "--rate", "8", *LOAD, "--slo", "p99_tpot_ms:30"]
    assert main(["plan", path, *words]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("Does not hold the goal: 4 H100 SXM; ")
    found = tried(printed)
    assert {each[0] for each, _ in found} >= {"--slo", "--on"}
    for each, devices in found:
        assert main(["plan", path, *words, *each]) == 0
        assert capsys.readouterr().out.startswith(f"Fits: {devices} of ")


@pytest.mark.parametrize(
    ("on", "words", "said"),
    [
        ("h100:16", ["--slo", "p99_tpot_ms:1"], "even one request alone misses the limit"),
        ("l4-24gb", [], "Does not fit: DeepSeek-R1 (fp8, 626.92 GiB) lacks "),
        ("l4-24gb@1,l40s-48gb@2", [], "\nl40s-48gb: nothing holds; TP1: weights alone take"),
    ],
)
def test_goals_that_nothing_meets(
    directory: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    on: str,
    words: list[str],
    said: str,
) -> None:
    path, output = str(directory(R1, quantization_config=FP8)), tmp_path / "plan.yaml"
    words = ["--on", on, "--rate", "0.2", *LOAD, *words, "-o", str(output)]
    assert main(["plan", path, *words]) == 1
    assert said in capsys.readouterr().out
    assert not output.exists()


def question(
    model: Model, name: str, on: str, rate: float, isl: int = 2000, rules: str = "vllm"
) -> Question:
    goal = Goal(tuple(poisson(rate, 100, isl, 100)), ())
    subject = model(name, **({"quantization_config": FP8} if name == R1 else {}))
    load = Load(chunk=0, sequences=0)
    return Question(subject, parse_target(on), engine(rules), load, goal, Speed(*shipped()))


@pytest.mark.parametrize(
    ("name", "on", "rate", "isl", "cut", "fewer"),
    [
        # As six stages of two.
        (R1, "h100:16", 2, 2000, Cut(8, 2), 12),
        # The KV of one request does not fit on four.
        ("Qwen/Qwen3-32B", "l4-24gb:8", 0.01, 60_000, Cut(4, 2), 5),
    ],
)
def test_powers_of_two_and_whole_nodes_are_preferred(
    model: Model, name: str, on: str, rate: float, isl: int, cut: Cut, fewer: int
) -> None:
    """The fewest devices of any size are suggested beside them."""
    asked = question(model, name, on, rate, isl)
    answered, found, _ = preferred(asked, [asked.target])
    assert found.choice is not None
    assert found.choice.candidate.cut == cut
    odd = [each.trial for each in offers(answered, found.choice.devices) if "-tp" in each.change]
    assert [trial.devices for trial in odd] == [fewer]


def test_another_size_is_taken_where_no_usual_one_fits(model: Model) -> None:
    asked = question(model, "mistralai/Mixtral-8x22B-v0.1", "l40s-48gb:7", 0.05, rules="penstock")
    answered, found, _ = preferred(asked, [asked.target])
    assert found.choice is not None
    assert found.choice.devices == 7
    assert not any("-tp" in each.change for each in offers(answered, 7))


@pytest.mark.parametrize(
    ("cut", "per_node", "usual"),
    [
        (Cut(1, 1), 8, True),
        (Cut(2, 4), 8, True),
        (Cut(2, 6), 8, False),
        (Cut(1, 5), 8, False),
        (Cut(3, 1), 8, False),
        (Cut(8, 3), 8, True),
        (Cut(24, 1), 8, True),
        (Cut(12, 2), 8, False),
        (Cut(1, 3), 1, True),
        (Cut(6, 1), 6, True),
        (Cut(1, 1), 1 << 16, True),
    ],
)
def test_usual_sizes(cut: Cut, per_node: int, usual: bool) -> None:
    assert cut.is_usual(per_node) == usual


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("p99_tpot_ms", "P99 TPOT"),
        ("median_ttft_ms", "median TTFT"),
        ("p99.9_e2el_ms", "P99.9 E2EL"),
    ],
)
def test_statistics_in_words(key: str, words: str) -> None:
    assert spoken(key) == words


class Screen(io.StringIO):
    def __init__(self, encoding: str, terminal: bool) -> None:
        super().__init__()
        self._encoding, self._terminal = encoding, terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("encoding", "terminal", "term", "draws"),
    [
        ("utf-8", True, "xterm-256color", True),
        ("UTF8", True, "linux", True),
        ("ascii", True, "xterm", False),
        ("utf-8", False, "xterm", False),
        ("utf-8", True, "dumb", False),
    ],
)
def test_blocks_are_for_terminals_that_show_them(
    encoding: str, terminal: bool, term: str, draws: bool
) -> None:
    assert draws_blocks(Screen(encoding, terminal), {"TERM": term}) == draws
