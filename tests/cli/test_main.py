import subprocess
import sys
from pathlib import Path

import pytest
from penstock import __version__
from penstock.cli.main import main
from penstock.config.flags import FLAGS, GROUPS, IGNORED
from penstock.config.kinds import Switch


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def serve_help(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    return capsys.readouterr().out


def test_help_has_every_flag_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    text = serve_help(capsys)
    sections = {title: text.split(f"\n{title}:\n")[1].split("\n\n")[0] for title in GROUPS.values()}
    for flag in FLAGS:
        section = sections[GROUPS[flag.group]]
        assert f"  {flag.name}" in section
        assert flag.env in "".join(section.split())
        assert not isinstance(flag.kind, Switch) or f"  --no-{flag.name[2:]}" in section


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"penstock {__version__}\n"


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
        "MODEL is '', expected a model, on the command line or as `model` in the file"
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
    words = [
        word
        for flag in IGNORED
        for word in ([flag.name, "0.9"] if flag.takes_value else [flag.name])
    ]
    assert main(["serve", "smollm2", *words]) == 1
    warnings = capsys.readouterr().err
    for flag in IGNORED:
        assert f"penstock: warning: {flag.name} is ignored: {flag.why}" in warnings


def test_an_unknown_flag_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "smollm2", "--max-nun-seqs", "3"])
    assert ended.value.code == 2
    assert "--max-nun-seqs" in capsys.readouterr().err


def test_an_unknown_model_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "smollm3"]) == 1
    assert "no alias (there is smollm2)" in capsys.readouterr().err


def test_the_hub_extra_is_named_where_it_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["serve", "some/model"]) == 1
    assert "pip install 'penstock[hub]'" in capsys.readouterr().err


def test_the_module_runs_as_the_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert ran.stdout == f"penstock {__version__}\n"
