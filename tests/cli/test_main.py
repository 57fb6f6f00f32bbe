import signal
import subprocess
import sys
import time
from importlib.metadata import EntryPoint, PackageNotFoundError
from pathlib import Path
from typing import NoReturn

import pytest

from penstock import __version__
from penstock.cli.main import main
from penstock.config.vllm_flags import FOREIGN, Foreign
from tests.limits import HANG
from tests.real_ranks import TINY

# The command, after a line that says that its first module is read.
IMPORTING = "import penstock.__main__ as command, sys; print(flush=True); sys.exit(command.main())"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_a_source_tree_that_is_not_installed_serves_without_tools(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def distribution(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("penstock.cli.main.distribution", distribution)
    assert main([]) == 0
    words = capsys.readouterr().out.split()
    assert "serve" in words
    assert "bench" not in words


def test_a_command_imports_no_tool_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load = EntryPoint.load
    monkeypatch.setattr(
        EntryPoint, "load", lambda point: (loaded.append(point.name), load(point))[1]
    )
    for words in (["-V"], ["--version"], ["serve", "--help"], ["gateway", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
    assert not loaded
    with pytest.raises(SystemExit):
        main(["top", "--help"])
    assert loaded == ["top"]
    with pytest.raises(SystemExit):
        main(["--help"])
    assert len(loaded) > 2


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([flag])
    shown = capsys.readouterr().out
    assert shown == f"penstock {__version__}\n"
    assert main(["version"]) == 0
    assert capsys.readouterr().out == shown


def test_a_wrong_value_is_refused_before_the_model_is_looked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "nowhere", "--port", "99999"]) == 2
    assert (
        capsys.readouterr().err
        == "penstock: error: --port is '99999', expected an integer in 0..65535\n"
    )


def test_a_model_is_named_on_the_command_line_or_in_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["serve"]) == 2
    assert (
        "which model? Name an alias (`penstock serve smollm2`), a GGUF file"
        in capsys.readouterr().err
    )
    file = tmp_path / "penstock.yaml"
    file.write_text("model: smollm3\n")
    assert main(["serve", "--config", str(file)]) == 1
    assert "smollm3" in capsys.readouterr().err


def test_the_negative_of_a_switch_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "smollm2", "--no-enable-prefix-caching", "--no-engine-process"]) == 1
    assert "run `penstock pull smollm2`" in capsys.readouterr().err


def test_flags_of_other_servers_are_ignored_with_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ignored = [flag for flag in FOREIGN if not flag.refused and not flag.only]
    words = [
        word
        for flag in ignored
        for word in ([flag.name, "0.9"] if flag.takes_value else [flag.name, f"--no-{flag.key}"])
    ]
    words = [word.replace("_", "-") for word in words]
    assert main(["serve", "smollm2", *words]) == 1
    warnings = capsys.readouterr().err
    for flag in ignored:
        assert f"penstock: warning: {flag.name} is ignored: {flag.why}" in warnings


@pytest.mark.parametrize("flag", [flag for flag in FOREIGN if flag.only], ids=lambda flag: flag.key)
def test_a_flag_of_vllm_takes_the_values_that_change_nothing(
    flag: Foreign, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "nowhere", flag.name, flag.only[0]]) == 1
    assert "warning" not in capsys.readouterr().err
    assert main(["serve", "nowhere", flag.name, "other"]) == 2
    assert f"{flag.name} is 'other', expected {flag.only[0]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag", [flag for flag in FOREIGN if flag.refused], ids=lambda flag: flag.key
)
def test_a_flag_of_vllm_that_would_change_answers_is_refused(
    flag: Foreign, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "nowhere", flag.name, *(["x"] if flag.takes_value else [])]) == 1
    assert f"{flag.name} is not supported: {flag.why}" in capsys.readouterr().err


def test_adapters_are_refused_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    """Their requests would be answered by the base model."""
    for words in (["--enable-lora"], ["--lora-modules", "a=/adapters/a"]):
        assert main(["serve", "smollm2", *words]) == 1
        assert "merge the adapter into the weights" in capsys.readouterr().err
    assert main(["serve", "smollm2", "--no-enable-lora"]) == 1
    assert "lora" not in capsys.readouterr().err


VLLM_FLAGS = """
    --model smollm2 --uvicorn-log-level warning --disable-uvicorn-access-log
    --no-enable-log-requests --generation-config vllm --allowed-origins ["*"] --root-path /llm
    --tokenizer smollm2 --revision main --load-format auto --max-logprobs 5
    --response-role assistant --task generate --device auto --swap-space 4 --api-server-count 1
    --data-parallel-size 1 --no-enable-lora --max-seq-len-to-capture 8192 --max-model-len 4k
    --dtype half --chat-template-content-format string --gpu-memory-utilization 0.9
    --enforce-eager --trust-remote-code --disable-log-requests --disable-log-stats
    --enable-chunked-prefill --no-enable-prefix-caching --max-num-batched-tokens 2k
    --served-model-name a --tensor-parallel-size 1 --seed 0 --block-size 16 --host 127.0.0.1
"""


def test_a_command_line_of_vllm_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *VLLM_FLAGS.split()]) == 1
    assert "run `penstock pull smollm2`" in capsys.readouterr().err.splitlines()[-1]


def test_two_models_are_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "a", "--model", "b"]) == 2
    assert "--model is 'b', expected nothing beside the MODEL a" in capsys.readouterr().err


def test_an_unknown_flag_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "smollm2", "--max-nun-seqs", "3"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == (
        "usage: penstock serve MODEL [--flag VALUE ...]\n"
        "penstock serve: error: unknown: --max-nun-seqs; did you mean --max-num-seqs? "
        "(`penstock serve --help-all` has all flags)\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["srve"], "did you mean serve?"),
        (["kv", "lss"], "did you mean ls?"),
        (["bench", "sevre"], "did you mean serve?"),
        (["bench", "throughput"], "no command 'throughput'; here it is `penstock bench offline`"),
        (["SmolLM2"], "to talk with a model: `penstock chat SmolLM2`"),
        (["bench", "serve", "--base-ulr", "x"], "did you mean --base-url?"),
        (["serve", "m", "--ctx-size=5"], "unknown: --ctx-size=5; here it is --max-model-len ("),
        (["plan", "m", "--max-running-requests", "5"], "; here it is --max-num-seqs"),
        (["chat", "--ctx-size", "5"], "unknown: --ctx-size ("),
        (
            ["kv", "ls", "path", "--jsn"],
            "kv ls: error: unknown: --jsn; did you mean --json",
        ),
        (["chat", "--zzzzzz"], "penstock chat: error: unknown: --zzzzzz (`penstock chat --help`"),
        (["pull", "a", "b"], "penstock pull: error: unknown: b"),
    ],
)
def test_a_mistyped_word_is_an_error_of_its_command(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_help_names_the_commands_of_kv_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "directory of a disk tier: ls, verify, gc " in text
    for act in ("ls", "verify", "gc"):
        with pytest.raises(SystemExit) as ended:
            main(["kv", act, "--help"])
        assert ended.value.code == 0


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr()
    assert "usage: penstock" in shown.out
    assert shown.err == ""


def test_ctrl_c_at_any_moment_of_a_start_shows_no_traceback() -> None:
    for delay in (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12):
        command = subprocess.Popen(
            [sys.executable, "-c", IMPORTING, "serve", "nowhere"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert command.stdout is not None
        command.stdout.readline()
        time.sleep(delay)
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=HANG)
        assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "reader"),
    [
        ("serve --help-all", "head -c 1"),
        ("plan {model} --explain", "head -c 1"),
        ("model show {model}", "head -c 1"),
        ("model show {model} --json", "head -c 1"),
        ("completion bash", "head -c 1"),
        ("bench --help", "head -c 1"),
        ("plan {model} --on nowhere 2>&1", "head -c 1"),
        ("serve --help-all", "true"),
        ("plan {model} --explain", "true"),
        ("--version", "true"),
    ],
)
def test_the_end_of_a_reader_is_a_quiet_end(tmp_path: Path, words: str, reader: str) -> None:
    """Whatever the command, and however much it has printed."""
    command = f"{sys.executable} -m penstock {words.format(model=TINY / 'llama')}"
    script = f"set -o pipefail; {command} | {{ {reader}; exec 0<&-; sleep 0.01; }}"
    found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert found.stderr == ""
    assert found.returncode in (0, 1, 2, 141)


def test_an_output_that_is_closed_is_none() -> None:
    script = f"{sys.executable} -m penstock completion bash >&-"
    assert subprocess.run(["bash", "-c", script], capture_output=True, check=True).stderr == b""


def test_an_unknown_model_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "smollm3"]) == 1
    assert "no alias (`penstock models aliases`)" in (said := capsys.readouterr().err)
    assert said.endswith("; did you mean smollm2?\n")


def test_without_a_network_the_missing_model_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["serve", "some/model:Q8_0"]) == 1
    said = capsys.readouterr().err
    assert f"some/model:Q8_0: nothing of it is in {tmp_path / 'hub'}" in said
    assert "HF_HUB_OFFLINE forbids downloads: run `penstock pull some/model:Q8_0` on a" in said


def test_the_module_runs_as_the_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG,
    )
    assert ran.stdout == f"penstock {__version__}\n"
