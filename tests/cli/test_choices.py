"""Every value that a help offers is taken by what reads it: no list of one thing stands twice."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import _native
from penstock.cli import completion, gateway, gateway_flags
from penstock.cli.arguments import add_settings, settings
from penstock.cli.main import main, parser
from penstock.cli.replicas import gateway_settings
from penstock.config import gather, resolve
from penstock.core import PenstockError
from penstock.hub import ALIASES

NEEDS = {
    "--attention-backend": ("--device", "cuda"),
    "--ray-channel": ("--distributed-executor-backend", "ray"),
    "--placement": ("--distributed-executor-backend", "ray"),
}
"""What a flag of `penstock serve` needs beside it."""
NOWHERE = ("--base-url", "http://127.0.0.1:9")


def offered() -> Iterator[tuple[str, str, str]]:
    """Command, flag and value of all commands; the flag is empty for an argument."""
    for words in completion.commands(parser()):
        for flag, values in words.values.items():
            yield from ((words.path, flag, value) for value in values if is_choice(value))
        yield from ((words.path, "", value) for value in words.positional if is_choice(value))


def is_choice(value: str) -> bool:
    return value not in (*completion.FILES, *ALIASES)


def try_serve(_: Path, flag: str, value: str) -> None:
    own = ArgumentParser()
    add_settings(own)
    given = settings(own.parse_args([flag, value, *NEEDS.get(flag, ())]))
    config = resolve(gather(given, None, {}), "model", "name")
    # The API server and the gateway read the log's settings with the same code.
    complain(gateway_settings(config, ["http://127.0.0.1:9"], "key"))


def try_gateway(_: Path, flag: str, value: str) -> None:
    own = ArgumentParser()
    gateway_flags.add_arguments(own)
    parsed = own.parse_args(["--backend", "http://127.0.0.1:9", flag, value])
    complain(gateway.settings(parsed, connections=1024))


def complain(found: dict[str, object]) -> None:
    assert _native.gateway_complaint(json.dumps(found)) is None


def try_plan(model: Path, flag: str, value: str) -> None:
    assert main(["plan", str(model), "--on", "h100-sxm-80gb:1", flag, value]) == 0


def try_model_show(model: Path, flag: str, value: str) -> None:
    assert main(["model", "show", str(model), flag, value]) == 0


def try_completion(_: Path, flag: str, value: str) -> None:
    assert not flag
    assert main(["completion", value]) == 0


def try_bench(command: str, *more: str) -> Callable[[Path, str, str], None]:
    """Nothing listens there: what it complains of is that, or the data that it has not."""

    def tried(model: Path, flag: str, value: str) -> None:
        words = [word.format(model=model) for word in more]
        assert main(["bench", command, *words, flag, value]) in (1, 2)

    return tried


def try_deploy(command: str) -> Callable[[Path, str, str], None]:
    """There is no such plan, which is read after the flags."""

    def tried(model: Path, flag: str, value: str) -> None:
        words = [f"{model}/no.yaml", "-o", f"{model}/m", "--image", "i"]
        assert main(["deploy", command, *words, flag, value]) in (1, 2)

    return tried


TRIES: dict[str, Callable[[Path, str, str], None]] = {
    "penstock serve": try_serve,
    "penstock gateway": try_gateway,
    "penstock plan": try_plan,
    "penstock model show": try_model_show,
    "penstock completion": try_completion,
    "penstock bench serve": try_bench("serve", *NOWHERE, "--num-prompts", "1"),
    "penstock bench trace": try_bench("trace", "{model}/no.csv", *NOWHERE),
    "penstock bench sweep": try_bench("sweep", *NOWHERE, "--concurrency", "1"),
    "penstock bench rounds": try_bench("rounds", *NOWHERE),
    "penstock bench plan": try_bench("plan", "{model}/no.yaml", *NOWHERE),
    "penstock bench offline": try_bench("offline", *NOWHERE, "--num-prompts", "1"),
    "penstock bench latency": try_bench("latency", *NOWHERE),
    "penstock bench compare": try_bench("compare", "--server", "no.toml"),
    "penstock bench tiers": try_bench("tiers", "{model}/no.gguf"),
    "penstock bench channels": try_bench("channels", "--far", "no-such-program"),
    "penstock deploy k8s": try_deploy("k8s"),
    "penstock deploy ray": try_deploy("ray"),
    "penstock deploy helm": try_deploy("helm"),
}
"""By command. A command with a new list of values needs one."""


@pytest.fixture(scope="module")
def model(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("choices") / "llama"
    shutil.copytree(repository / "tests/fixtures/tiny/llama", directory)
    return directory


@pytest.mark.parametrize("path", sorted({path for path, _, _ in offered()}))
def test_every_value_of_a_help_is_taken(
    path: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = []
    for _, flag, value in (one for one in offered() if one[0] == path):
        try:
            TRIES[path](model, flag, value)
        except (PenstockError, AssertionError, SystemExit) as error:
            refused.append(f"{flag} {value}: {error}")
        said = capsys.readouterr().err
        if re.search(rf"{re.escape(flag or value)}\b.*(is '|invalid|expected)", said):
            refused.append(f"{flag} {value}: {said}")
    assert not refused, "\n".join(refused)


def test_summaries_name_the_commands_there_are() -> None:
    """`kv: ls, verify, gc` names each of them, and nothing else."""
    words = {one.path: one for one in completion.commands(parser())}
    for name, summary in words["penstock"].commands.items():
        own = words.get(f"penstock {name}")
        named = re.search(r": ((?:[a-z0-9]+, )*[a-z0-9]+)$", summary)
        if own and own.commands and named:
            assert named[1].split(", ") == list(own.commands), name


def test_a_certificate_needs_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    backend = ("--backend", "http://127.0.0.1:9")
    flags = (("--ssl-certfile", "a.pem"), ("--ssl-keyfile", "a.pem"))
    for command, one in itertools.product((("gateway", *backend), ("serve", "smollm2")), flags):
        assert main([*command, *one]) in (1, 2)
        said = capsys.readouterr().err
        assert "--ssl-certfile and --ssl-keyfile go together: give both or neither" in said
