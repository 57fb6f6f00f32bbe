"""Prompts of the default model's tokenizer have exactly the requested length."""

import json
from pathlib import Path
from random import Random

import pytest

from penstock._native import Tokenizer
from penstock.core import PenstockError
from penstock_lab.bench.prompts import PromptMaker, Reply, Served, ids, make
from penstock_lab.bench.prompts.words import COMMON
from tests.fakes.tokenizing import TokenizingServer

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def tokenizer(model_file: Path) -> Tokenizer:
    return Tokenizer(str(model_file))


@pytest.fixture(scope="module")
def maker(model_file: Path) -> PromptMaker:
    return make(Served("offline"), tokenizer=str(model_file))


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_lengths_to_2000(maker: PromptMaker, tokenizer: Tokenizer, step: int) -> None:
    for length in (*range(1, 130), *range(130, 2001, step)):
        text = maker.prompt(ids.fresh(maker.vocabulary, 5, length, length))
        assert isinstance(text, str)
        assert len(tokenizer.encode(text, True)) == length + maker.overhead


def test_thousands_of_words(maker: PromptMaker) -> None:
    assert len(maker.vocabulary) > 5000
    assert len(set(str(maker.prompt(maker.vocabulary)).split())) == len(maker.vocabulary)


def test_equal_ids_are_equal_tokens_and_no_more(maker: PromptMaker, tokenizer: Tokenizer) -> None:
    shared = ids.shared_prefix(maker.vocabulary, 1, 40)
    encoded = [
        tokenizer.encode(
            str(maker.prompt(shared + ids.fresh(maker.vocabulary, 1, index, 20))), True
        )
        for index in range(2)
    ]
    assert encoded[0][:40] == encoded[1][:40]
    assert encoded[0][40] != encoded[1][40]


def test_ids_are_the_tokens_of_the_words(
    model_file: Path, maker: PromptMaker, tokenizer: Tokenizer
) -> None:
    as_ids = make(Served("offline"), tokenizer=str(model_file), as_ids=True)
    chosen = Random(0).choices(as_ids.vocabulary, k=50)
    assert as_ids.prompt(chosen) == chosen
    assert tokenizer.encode(f"first {maker.prompt(chosen)}", False)[1:] == chosen


def test_the_template_by_the_models_own_rules(model_file: Path, tokenizer: Tokenizer) -> None:
    maker = make(Served("offline", CHAT), tokenizer=str(model_file))
    text = maker.prompt(list(maker.vocabulary[:100]))
    messages = [{"role": "user", "content": text}]
    rendered = len(tokenizer.encode(tokenizer.render_chat(json.dumps(messages), True), False))
    assert maker.template > 0
    assert rendered == 100 + maker.overhead
    assert maker.count(messages) == maker.count(text) == rendered


def test_counting(maker: PromptMaker, tokenizer: Tokenizer) -> None:
    text = "Antidisestablishmentarianism, naturally: 42 ligatures."
    assert maker.count(text) == len(tokenizer.encode(text, True))


def test_the_models_own_files_are_found(model_file: Path) -> None:
    assert str(model_file) in make(Served("served-name", root=str(model_file))).name


def test_a_tokenizer_that_is_not_the_servers(model_file: Path) -> None:
    def other(method: str, path: str, body: object = None) -> Reply:
        assert isinstance(body, dict)
        return Reply(200, {"usage": {"prompt_tokens": len(body["prompt"])}})

    with pytest.raises(PenstockError, match=r"another tokenizer.*--tokenizer"):
        make(Served("served-name", fetch=other), tokenizer=str(model_file))


def test_a_wrong_guess_gives_way_to_the_servers_tokenizer(model_file: Path) -> None:
    rare = frozenset(word for word in real_words(model_file) if word not in COMMON)
    server = TokenizingServer("vllm", split=rare)
    maker = make(Served("served-name", fetch=server, root=str(model_file)))
    assert "/tokenize" in maker.name
    assert server.prompt_tokens(maker.prompt(maker.vocabulary[:50])) == 50


def real_words(model_file: Path) -> list[str]:
    maker = make(Served("offline"), tokenizer=str(model_file))
    return str(maker.prompt(maker.vocabulary)).split()


def test_no_tokenizer_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "notes.gguf").write_text("no model")
    with pytest.raises(PenstockError, match="--tokenizer"):
        make(Served("offline"), tokenizer=str(tmp_path / "notes.gguf"))
