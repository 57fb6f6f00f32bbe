"""The tokenizer of models without one, as the API server reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock._native import Tokenizer
from penstock.core import PenstockError
from penstock.model.errors import ModelError
from penstock.model.stand_in_tokenizer import tokenizer_of, write_stand_in
from penstock_lab.bench.prompts.words import COMMON, usable

VOCAB = 256 + 26**3 + 100


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("stand-in")
    write_stand_in(directory, VOCAB)
    return Tokenizer(str(directory))


def test_each_id_is_a_text_of_its_own_that_is_read_back(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == VOCAB
    ids = [256, 257, 256 + 26**3 - 1, 256 + 26**3, VOCAB - 1]
    texts = [tokenizer.decode([each], False) for each in ids]
    assert texts == [" aaa", " aab", " zzz", " aaaa", " aadv"]
    assert tokenizer.encode("".join(texts), False) == ids


def test_other_text_is_its_bytes(tokenizer: Tokenizer) -> None:
    for text in ("Grüße, 世界 🙂\n\t\x00", "ABC", "1234"):
        ids = tokenizer.encode(text, False)
        assert bytes(ids) == b" " + text.encode()
        assert tokenizer.decode(ids, False) == " " + text


def test_the_benchmark_finds_words_of_one_token(tokenizer: Tokenizer) -> None:
    words = usable(COMMON, lambda text: tokenizer.encode(text, False))
    assert len(words) > 48
    assert len(tokenizer.encode(" ".join(words.values()), False)) == len(words)


def test_conversations_have_a_template(tokenizer: Tokenizer) -> None:
    messages = json.dumps([{"role": "user", "content": "hi"}])
    assert tokenizer.render_chat(messages, True) == "user: hi\nassistant:"


@pytest.mark.parametrize("vocab", [255, 256 + 26**3 + 26**4 + 1])
def test_a_vocabulary_without_a_stand_in_is_refused(tmp_path: Path, vocab: int) -> None:
    with pytest.raises(PenstockError, match="name another model's with --tokenizer"):
        write_stand_in(tmp_path, vocab)


def test_it_is_temporary(tmp_path: Path) -> None:
    with tokenizer_of(tmp_path, 300, dummy=True) as made:
        assert (made / "tokenizer.json").is_file()
    assert not made.exists()
    (tmp_path / "tokenizer.json").write_text("{}")
    with tokenizer_of(tmp_path, 300) as own:
        assert own == tmp_path


def test_a_directory_without_a_tokenizer_names_the_ways_out(tmp_path: Path) -> None:
    ways = r"no tokenizer: .*--tokenizer, .*--skip-tokenizer-init \(of LLM: .*=True\)"
    with pytest.raises(ModelError, match=ways), tokenizer_of(tmp_path, 300):
        pass
    (tmp_path / "tokenizer.model").touch()
    unread = r"tokenizer\.model is not read"
    with pytest.raises(ModelError, match=unread), tokenizer_of(tmp_path, 300):
        pass


def test_without_text_tokens_decode_to_nothing_and_no_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with tokenizer_of(tmp_path, 300, skipped=True) as made:
        native = Tokenizer(str(made))
    assert native.vocab_size == 300
    assert native.decode([0, 17, 299], False) == native.output_text([0, 17, 299], True) == ""
    for text in ("a", "token_id:17", " token_id:17", "<unk>"):
        with pytest.raises(ValueError, match="cannot be tokenized"):
            native.encode(text, False)
    with pytest.raises(ValueError, match="no chat template"):
        native.render_chat('[{"role": "user", "content": "a"}]', True)
    with pytest.raises(ValueError, match="no grammar can be followed"):
        native.grammar("regex", "a+")
