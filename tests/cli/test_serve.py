import sys
from pathlib import Path

import pytest

from penstock.cli.serve import front_door, run, tokenizer_source, warn
from penstock.cli.serve import model_info as model_info_of
from penstock.config import Config, EngineConfig, Raw, resolve
from penstock.config.terminal import has_styles
from penstock.core import PenstockError
from penstock.hub import ALIASES, locate
from penstock.model import GenerationDefaults, ModelInfo
from tests.fakes import models


def model_info(generation: GenerationDefaults) -> ModelInfo:
    spec = models.dense_spec(2, 64, 100, 128, (4, 2, 16), 128)
    return models.model_info(spec, "m.gguf", generation=generation)


def config(**texts: str) -> Config:
    raw = {key: Raw("--" + key, (text,)) for key, text in texts.items()}
    return resolve(raw, "m.gguf", "tiny")


def test_the_front_door_is_told_everything_and_nothing_else() -> None:
    generation = GenerationDefaults(temperature=0.6, top_k=20)
    told = front_door(
        config(
            port="1", max_request_bytes="4KiB", api_key="k", admin_api_key="a", max_model_len="64"
        ),
        model_info(generation),
        "m.gguf",
        {"argv": ["engine"]},
        100,
    )
    assert told == {
        "host": "127.0.0.1",
        "port": 1,
        "served_model_names": ["tiny"],
        "model_path": "m.gguf",
        "vocab_size": 100,
        "skip_tokenizer_init": False,
        "chat_template": None,
        "allow_special_tokens": False,
        "trust_request_chat_template": False,
        "job_command": [sys.executable, "-m", "penstock.cli.job"],
        "tool_call_parser": "auto",
        "reasoning_parser": "auto",
        "allowed_origins": [],
        "api_keys": ["k"],
        "api_key_file": None,
        "ui": True,
        "access_log": False,
        "otlp_traces_endpoint": None,
        "metrics_port": None,
        "notify_socket": None,
        "tls": None,
        "uds": None,
        "admin_api_key": "a",
        "generation_defaults": {
            "temperature": 0.6,
            "top_k": 20,
            "top_p": None,
            "min_p": None,
            "repetition_penalty": None,
        },
        "engine": {"argv": ["engine"]},
        "max_queue": 1024,
        "max_queue_wait_s": 10.0,
        "limits": {"max_body_bytes": 4096, "max_connections": 100},
        "drain_timeout_s": 30.0,
        "stall_timeout_s": 30.0,
        "ranks": 1,
        "max_model_len": 64,
        "log": {"level": "info", "format": "text", "color": has_styles()},
        "version": told["version"],
    }


def test_a_seed_becomes_the_default_of_requests() -> None:
    told = front_door(config(seed="5"), model_info(GenerationDefaults()), "m.gguf", {}, 100)
    defaults = told["generation_defaults"]
    assert isinstance(defaults, dict)
    assert defaults["seed"] == 5


def test_the_configuration_of_the_engine_survives_json_and_has_no_key() -> None:
    engine = config(max_num_seqs="3", api_key="secret", log_level="error").engine
    written = engine.to_json()
    assert EngineConfig.from_json(written) == engine
    assert "secret" not in written


def test_a_missing_chat_template_is_named(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"--chat-template .*no\.jinja: no such file"):
        warn(model_info(GenerationDefaults()), config(chat_template=str(tmp_path / "no.jinja")))


def test_settings_of_the_checkpoint_that_are_not_applied_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    warn(model_info(GenerationDefaults(not_applied=(("typical_p", 0.1),))), config())
    assert "the model asks for typical_p=0.1, which is not applied" in capsys.readouterr().err


def test_more_threads_than_cpus_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    warn(model_info(GenerationDefaults()), config(threads="1024"))
    assert "warning: --threads 1024 on " in capsys.readouterr().err


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    assert tokenizer_source(config(tokenizer=str(tmp_path))) == tmp_path
    assert tokenizer_source(config()) == Path("m.gguf")


@pytest.mark.parametrize("key", ["tokenizer", "chat_template"])
def test_a_tokenizer_that_is_not_used_is_refused(key: str) -> None:
    with pytest.raises(PenstockError, match=f"--{key.replace('_', '-')} does not go with --skip-"):
        config(skip_tokenizer_init="true", **{key: "other"})


def test_the_alias_has_the_sampling_of_its_card(
    monkeypatch: pytest.MonkeyPatch, model_file: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    ALIASES["smollm2"].path.parent.mkdir()
    ALIASES["smollm2"].path.symlink_to(model_file)
    located = locate("smollm2")
    for source, temperature, top_p in (("auto", 0.2, 0.9), ("vllm", None, None)):
        raw = {"generation_config": Raw("--generation-config", (source,))}
        chosen = resolve(raw, str(located.path), located.served_name)
        info = model_info_of(chosen.engine, located)
        told = front_door(chosen, info, "m.gguf", {"argv": []}, 1)["generation_defaults"]
        assert isinstance(told, dict)
        assert (told["temperature"], told["top_p"]) == (temperature, top_p)
    by_path = locate(str(located.path))
    assert model_info_of(chosen.engine, by_path).generation == GenerationDefaults()


def test_what_the_front_door_cannot_do_is_the_users_error() -> None:
    pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")
    with pytest.raises(PenstockError, match="API server configuration"):
        run({})
