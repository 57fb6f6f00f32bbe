import argparse
import json
import sys
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.core import InvalidValueError, PenstockError
from penstock_lab import sim


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    sim.add_arguments(parser)
    return parser.parse_args(arguments)


def test_the_server_is_told_everything_and_nothing_else() -> None:
    told = sim.server(
        parsed(
            "--port",
            "9",
            "--replicas",
            "2",
            "--fault",
            "cut:0.5",
            "--fault",
            "refuse",
            "--seed",
            "7",
        )
    )
    assert told == {
        "host": "127.0.0.1",
        "port": 9,
        "replicas": 2,
        "threads": 1,
        "served_model_name": "sim",
        "version": told["version"],
        "engine": {
            "profile": "default",
            "tokenizer": None,
            "seed": 7,
            "faults": ["cut:0.5", "refuse"],
            "answer_tokens": None,
            "die_after_s": None,
        },
    }


def test_a_tokenizer_names_the_model(tmp_path: Path) -> None:
    model = tmp_path / "small.gguf"
    model.touch()
    told = sim.server(parsed("--tokenizer", str(model)))
    assert told["served_model_name"] == "small"
    assert sim.engine(parsed("--tokenizer", str(model)))["tokenizer"] == str(model)


def test_a_profile_is_a_name_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"max_num_seqs": 3}')
    assert sim.profile("instant") == sim.profile("Instant") == "instant"
    assert sim.profile(str(file)) == {"max_num_seqs": 3}
    file.write_text("[1]")
    with pytest.raises(PenstockError, match="a JSON object"):
        sim.profile(str(file))
    file.write_text("{")
    with pytest.raises(PenstockError, match=r"mine\.json: Expecting"):
        sim.profile(str(file))
    with pytest.raises(PenstockError, match="no preset either"):
        sim.profile(str(tmp_path / "none.json"))


@pytest.mark.parametrize("flags", [("--replicas", "0"), ("--threads", "65"), ("--port", "65536")])
def test_numbers_have_limits(flags: tuple[str, str]) -> None:
    with pytest.raises(InvalidValueError, match=flags[0]):
        sim.server(parsed(*flags))


def test_the_engine_command_carries_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.json").write_text("{}")
    flags = ["--fault", "stall", "--answer-tokens", "9:1", "--die-after", "3", "--seed", "5"]
    argv = sim.engine_argv(parsed("--profile", "mine.json", *flags), Path("/m.gguf"))
    assert argv[0] == sys.executable
    again = parsed(*argv[argv.index("sim") + 1 :])
    assert again.wire == "{socket}"
    assert (again.profile, again.tokenizer) == (str(tmp_path / "mine.json"), "/m.gguf")
    assert (again.fault, again.answer_tokens) == (["stall"], "9:1")
    assert (again.die_after, again.seed) == (3.0, 5)


def test_what_the_engine_says_of_its_settings_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")
    file = tmp_path / "mine.json"
    for members, complaint in [
        ({"block_size": 17}, "block_size must be a multiple of 16"),
        ({"timing": {"base": 1}}, "unknown field `base`"),
        ({"timing": {"jitter": 1.5}}, "timing.jitter"),
    ]:
        file.write_text(json.dumps(members))
        assert main(["sim", "--profile", str(file)]) == 2
        assert complaint in capsys.readouterr().err
    assert main(["sim", "--fault", "explode"]) == 2
    assert main(["sim", "--wire", str(tmp_path / "closed"), "--fault", "cut"]) == 2
    assert "on the wire" in capsys.readouterr().err
    assert main(["sim", "--wire", str(tmp_path / "closed")]) == 1
    assert "cannot connect to the API server" in capsys.readouterr().err


def test_a_front_door_and_a_wire_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sim", "--wire", "x", "--front-door", "y"])
    assert "not allowed with" in capsys.readouterr().err
