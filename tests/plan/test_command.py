"""`penstock plan` as it is typed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from penstock.cli.main import main
from penstock_ops.plan.hardware import ROOT, accelerator, names, node, parse_target
from tests.plan.conftest import FP8, R1


def test_memory_of_each_rank_with_its_arithmetic(
    directory: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(directory(R1, quantization_config=FP8))
    words = ["--on", "h100-sxm-80gb:16", "-tp", "16", "--engine", "sglang", "--explain"]
    assert main(["plan", path, *words, "--memory-fraction", "0.85"]) == 0
    printed = capsys.readouterr().out
    assert "671.03 billion weights (36.63 active), fp8" in printed
    assert printed.startswith("Fits: 16 of 16 H100 SXM (TP16). Up to 2 sequences of 163,840 ")
    assert "TP16: 392,016 tokens" in printed
    assert "layers that see all tokens" in printed
    assert "--mem-fraction-static" in printed


def test_sequences_by_context(
    directory: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(directory("Qwen/Qwen3-8B"))
    assert main(["plan", path, "--on", "l40s-48gb", "--table", "concurrency"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = {row[0]: row[1:] for row in rows if len(row) == 3}
    assert "2,048" in found
    assert int(found["8,192"][1]) == pytest.approx(2 * int(found["8,192"][0]), abs=1)


def test_sizes_of_a_model_that_is_not_known_say_so(
    directory: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(directory("Qwen/Qwen3-8B", model_type="new", architectures=["NewForCausalLM"]))
    assert main(["plan", path, "--on", "l40s-48gb"]) == 0
    printed = capsys.readouterr().out
    assert "note: sized by the keys of config.json alone: no model of type 'new'" in printed
    assert "note: of Penstock itself no backend runs NewForCausalLM yet" in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on", "h1000"], "one of here, a10-24gb"),
        (["--on", "h100-sxm-80gb:0"], "TYPE or TYPE:N"),
        (["--on", "h100-sxm-80gb", "--slo", "ttft:50"], "the load that it is for: --rate or"),
        (["--on", "h100-sxm-80gb:16", "--engine", "vllm", "-tp", "12"], "do not divide by 12"),
        *(
            (["--on", "h100-sxm-80gb:16", *words, "--max-model-len", length], said)
            for words in ([], ["--table", "concurrency"], ["--table", "fit"], ["--rate", "1"])
            for length, said in (
                ("0", "--max-model-len is 0, expected 1 to 163840, the model's own length"),
                ("-1", "--max-model-len is -1, expected 1 to 163840"),
                ("163841", "--max-model-len is 163841, expected 1 to 163840"),
            )
        ),
    ],
)
def test_errors_say_what_to_change(
    directory: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    path = str(directory(R1, quantization_config=FP8))
    assert main(["plan", path, *words]) in (1, 2)
    assert said in capsys.readouterr().err


def test_every_row_of_hardware_has_its_source() -> None:
    for name in names("accelerators"):
        found = accelerator(name)
        assert found.name == name
        assert found.source
        assert found.bandwidth > 1e11
        assert found.flops["bf16"] > 1e14
    for name in names("nodes"):
        assert node(name).device.name in names("accelerators")
        assert node(name).source
    assert len(names("accelerators")) == 15


def test_the_network_of_a_node_is_that_of_its_ports() -> None:
    """`N x R Gb/s` of the fabric, over the devices: not what the accelerator's own servers have."""
    ports = re.compile(r"(?:(\d+) x )?(\d+) Gb/s")
    for name in names("nodes"):
        row = yaml.safe_load((ROOT / "nodes" / f"{name}.yaml").read_text())
        found = ports.search(row["fabric"])
        assert found, name
        rate = int(found[1] or 1) * int(found[2]) / 8 / row["accelerators"]
        assert node(name).devices().network == pytest.approx(rate * 1e9), name
        efa = row.get("fabric_resources", {}).get("vpc.amazonaws.com/efa")
        assert efa in (None, int(found[1] or 1)), name


def test_a_node_is_as_many_devices_as_it_has() -> None:
    target = parse_target("azure-nd96isr-h100-v5:2")
    assert (target.count, target.per_node, target.accelerator.name) == (16, 8, "h100-sxm-80gb")
