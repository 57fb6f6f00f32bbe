"""Paths, generation defaults and special tokens of Hugging Face directories."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.model import GenerationDefaults, ModelError, load_model, sampling_defaults
from penstock.model.files import tensor_names, weight_map
from tests.families import FAMILIES, GGUF_FAMILIES, GGUF_MAPPINGS, MAPPINGS

ADDED = {"7": {"content": "<|end|>"}, "8": {"content": "<s>"}}


def test_generation_defaults(load_hf: Any) -> None:
    assert load_hf().generation == GenerationDefaults()
    full = {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "repetition_penalty": 1.05,
        "min_p": 0.0,
        "typical_p": 0.5,
    }
    assert load_hf(generation_config=full).generation == GenerationDefaults(
        temperature=0.6,
        top_k=20,
        top_p=0.95,
        min_p=0.0,
        repetition_penalty=1.05,
        not_applied=(("typical_p", 0.5),),
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("temperature", -1), ("top_k", 1.5), ("top_p", 2), ("top_p", 0), ("top_p", "0.9")],
)
def test_bad_generation_defaults_are_refused(load_hf: Any, key: str, value: object) -> None:
    with pytest.raises(ModelError, match=rf"generation_config\.json: {key} = "):
        load_hf(generation_config={key: value})


def test_sampling_defaults_are_chosen_and_overridden(tmp_path: Path) -> None:
    own = GenerationDefaults(temperature=0.6, top_k=20)
    assert sampling_defaults(own) == own
    assert sampling_defaults(own, "vllm") == GenerationDefaults()
    (tmp_path / "generation_config.json").write_text('{"top_p": 0.5}')
    for source in (tmp_path, tmp_path / "generation_config.json"):
        assert sampling_defaults(own, str(source)) == GenerationDefaults(top_p=0.5)
    over = sampling_defaults(own, "auto", '{"top_k": 5, "min_p": 0.1}')
    assert over == GenerationDefaults(temperature=0.6, top_k=5, min_p=0.1)


@pytest.mark.parametrize(
    ("source", "override", "message"),
    [
        ("/nowhere", None, "/nowhere"),
        ("auto", "{", "--override-generation-config: not valid JSON"),
        ("auto", "[1]", "--override-generation-config: must be a JSON object"),
        ("auto", '{"top_p": 2}', "--override-generation-config: top_p = 2"),
    ],
)
def test_bad_sampling_defaults_name_their_place(
    source: str, override: str | None, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        sampling_defaults(GenerationDefaults(), source, override)


def test_stop_tokens_of_both_files_count(load_hf: Any) -> None:
    assert load_hf().tokens.stop == (2,)
    assert load_hf({"eos_token_id": [3, 2]}).tokens.stop == (2, 3)
    tokens = load_hf({"eos_token_id": 2}, generation_config={"eos_token_id": [5, 4]}).tokens
    assert tokens.stop == (2, 4, 5)
    assert tokens.eos == 5


def test_the_tokenizers_own_end_token_stops_too(load_hf: Any) -> None:
    named = {"eos_token": "<|end|>", "bos_token": {"content": "<s>"}, "added_tokens_decoder": ADDED}
    tokens = load_hf(generation_config={"eos_token_id": 2}, tokenizer_config=named).tokens
    assert (tokens.eos, tokens.bos, tokens.stop) == (7, 8, (2, 7))


def test_ids_of_named_tokens_may_be_in_tokenizer_json(load_hf: Any) -> None:
    added = ["<|end|>", {"content": "<|end|>", "id": "x"}, {"content": "<|end|>", "id": 11}]
    tokens = load_hf(
        tokenizer_config={"eos_token": "<|end|>"}, tokenizer={"added_tokens": added}
    ).tokens
    assert tokens.eos == 11


def test_token_ids_beyond_the_vocabulary(load_hf: Any) -> None:
    with pytest.raises(ModelError, match=r"eos_token_id = 1000 .* from 0 to 999"):
        load_hf({"eos_token_id": 1000})
    with pytest.raises(ModelError, match=r"eos_token_id = \[2, 1000\] .* token ids from 0 to 999"):
        load_hf({"eos_token_id": [2, 1000]})
    added = {"99999": {"content": "<|end|>"}, "\u00b2": {"content": "<|end|>"}}
    named = {"eos_token": "<|end|>", "added_tokens_decoder": added}
    assert load_hf(tokenizer_config=named).tokens.eos == 2


def test_beginning_token(load_hf: Any) -> None:
    assert load_hf().tokens.add_bos is None
    assert load_hf(tokenizer_config={"add_bos_token": False}).tokens.add_bos is False
    assert load_hf({"bos_token_id": None}).tokens.bos is None


def _refusal(path: Path) -> str:
    with pytest.raises(ModelError) as refusal:
        load_model(path)
    return str(refusal.value)


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    assert "no such file" in _refusal(tmp_path / "none")
    assert "no config.json" in _refusal(tmp_path)
    (tmp_path / "q4.gguf").write_bytes(b"GGUF")
    assert "name one of them: q4.gguf" in _refusal(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(64))
    assert "not a GGUF file" in _refusal(tmp_path / "weights.bin")
    (tmp_path / "config.json").write_text("{}")
    assert "no weights" in _refusal(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    assert "it holds pytorch_model.bin, whose format can run code" in _refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "Git LFS pointer"),
        (b"\n<!DOCTYPE html>\n<html><head>", "an HTML page"),
        (b"<html lang=en>", "an HTML page"),
        (b"", "empty"),
        (b"PK\x03\x04weights", "a ZIP archive"),
        (b"\x1f\x8b\x08", "gzip"),
    ],
)
def test_what_stands_in_place_of_a_model_is_named(
    tmp_path: Path, content: bytes, named: str
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    assert f"{file}: " in _refusal(file)
    assert named in _refusal(file)


def test_a_pointer_in_place_of_weights_is_named(repository: Path, tmp_path: Path) -> None:
    directory = tmp_path / "llama"
    shutil.copytree(repository / "tests/fixtures/tiny/llama", directory)
    file = directory / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert _refusal(directory).startswith(f"{file}: a Git LFS pointer")
    file.rename(directory.parent / "alone.safetensors")
    (directory.parent / "alone.safetensors").write_bytes(bytes(100))
    assert "name the directory with its config.json" in _refusal(tmp_path / "alone.safetensors")


def test_a_damaged_gguf_file_is_refused_with_the_readers_words(tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(b"GGUF")

    def reader(path: str) -> dict[str, object]:
        raise ValueError(f"{path}: header at byte 4: needs 4 bytes")

    with pytest.raises(ModelError) as refusal:
        load_model(file, reader)
    assert str(refusal.value) == f"{file}: header at byte 4: needs 4 bytes"


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"a": \x00}', "\ud800"])
def test_damaged_json_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogatepass"))
    (tmp_path / "model.safetensors").touch()
    assert "config.json: " in _refusal(tmp_path)


def test_code_beside_the_weights_stays_unread(load_hf: Any, tmp_path: Path) -> None:
    (tmp_path / "modeling_evil.py").write_text("raise SystemExit('loaded')")
    assert (
        load_hf({"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}}).architecture
        == "LlamaForCausalLM"
    )


@pytest.mark.parametrize("name", FAMILIES + MAPPINGS)
def test_tiny_checkpoints_give_the_specs_that_the_decoder_is_tested_with(
    repository: Path, name: str
) -> None:
    fixtures = repository / "tests" / "fixtures"
    info = load_model(fixtures / "tiny" / name)
    expected = json.loads((fixtures / "specs" / f"{name}.json").read_text())
    assert json.loads(info.spec.to_json()) == expected["spec"]
    assert json.loads(info.weights.to_json()) == expected["weights"]
    assert info.generation == GenerationDefaults(temperature=0.6, top_p=0.9)
    assert info.tokens.stop == (0, 2)


@pytest.mark.parametrize("name", GGUF_FAMILIES + GGUF_MAPPINGS)
def test_tiny_gguf_through_the_native_reader(repository: Path, name: str) -> None:
    pytest.importorskip("penstock._native", reason="the extension is not built")
    fixtures = repository / "tests" / "fixtures"
    info = load_model(fixtures / "tiny" / name)
    expected = json.loads((fixtures / "specs" / f"{name}.json").read_text())
    assert json.loads(info.spec.to_json()) == expected["spec"]
    assert json.loads(info.weights.to_json()) == expected["weights"]


@pytest.mark.parametrize(
    "text", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "[]", "{"]
)
def test_a_damaged_index_is_named(tmp_path: Path, text: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    for read in (weight_map, lambda index: tensor_names(index.parent)):
        with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json: "):
            read(index)
    index.write_text('{"weight_map": {"a": "x.safetensors"}}')
    assert weight_map(index) == {"a": "x.safetensors"}
    assert tensor_names(tmp_path) == {"a"}
