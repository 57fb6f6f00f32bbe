"""Whatever server it is, it counts what was asked; when that cannot be, the message says what to
do.
"""

from random import Random

import pytest

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.prompts import Reply, Served, make
from penstock_lab.bench.prompts.words import COMMON
from tests.fakes.tokenizing import TokenizingServer, tokens_of

CHAT = "/v1/chat/completions"
SPLIT = frozenset(COMMON[1::3])


def served(server: TokenizingServer, endpoint: str = "/v1/completions") -> Served:
    return Served("no-such-model", endpoint, server)


@pytest.mark.parametrize("bos", [0, 1, 2])
@pytest.mark.parametrize("form", ["vllm", "llama.cpp", "none"])
def test_the_server_counts_what_was_asked(form: str, bos: int) -> None:
    server = TokenizingServer(form, bos=bos, split=SPLIT)
    maker = make(served(server))
    assert (maker.special, maker.template, maker.overhead) == (bos, 0, bos)
    assert len(maker.vocabulary) >= 32
    for length in (1, 2, 17, 500):
        ids = Random(length).choices(maker.vocabulary, k=length)
        assert server.prompt_tokens(maker.prompt(ids)) == length + maker.overhead


@pytest.mark.parametrize("form", ["vllm", "llama.cpp", "none"])
def test_a_template_is_measured_and_comes_on_top(form: str) -> None:
    server = TokenizingServer(form, template=11, split=SPLIT)
    maker = make(served(server, CHAT))
    assert (maker.special, maker.template) == (0, 11)
    text = maker.prompt(list(maker.vocabulary[:30]))
    assert server.chat_tokens([{"role": "user", "content": text}]) == 41


def test_words_that_are_two_tokens_are_not_used() -> None:
    maker = make(served(TokenizingServer("vllm", split=SPLIT)))
    assert not SPLIT & set(str(maker.prompt(maker.vocabulary)).split())


def test_without_usage_the_tokenizer_is_believed() -> None:
    assert make(served(TokenizingServer("vllm", usage=False, bos=1))).special == 1
    assert make(served(TokenizingServer("vllm", usage=False, template=9), CHAT)).template == 9


def test_ids_from_the_servers_tokenizer() -> None:
    server = TokenizingServer("llama.cpp", bos=1)
    maker = make(served(server), as_ids=True)
    ids = list(maker.vocabulary[:20])
    assert maker.prompt(ids) == ids
    assert maker.overhead == 0
    words = make(served(server)).prompt(ids)
    assert tokens_of(f"first {words}")[1:] == ids


def test_ids_from_the_size_of_the_vocabulary_keep_off_its_ends() -> None:
    maker = make(served(TokenizingServer()), as_ids=True, vocab_size=1000)
    assert list(maker.vocabulary) == list(range(250, 750))
    assert maker.count([300, 301]) == 2
    assert maker.count("text") is None


def test_counting_other_text() -> None:
    server = TokenizingServer("vllm", bos=1)
    assert make(served(server)).count("any old words") == 4
    chat = make(served(server, CHAT))
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why"}]
    assert chat.count("any old words") == 3 + 7
    assert chat.count(messages) == server.chat_tokens(messages)


def test_messages_without_a_template_are_counted_by_parts() -> None:
    maker = make(served(TokenizingServer("llama.cpp"), CHAT))
    assert (
        maker.count([{"role": "user", "content": "one two"}, {"role": "user", "content": "three"}])
        == 3 + 14
    )


def test_usage_alone_counts_no_other_text() -> None:
    server = TokenizingServer()
    maker = make(served(server))
    asked = len(server.asked)
    assert maker.count("any old words") is None
    assert len(server.asked) == asked


@pytest.mark.parametrize(
    ("as_ids", "remedies"),
    [(False, ("--tokenizer", "--prompt-ids")), (True, ("--tokenizer", "--vocab-size"))],
)
def test_nothing_to_go_by(as_ids: bool, remedies: tuple[str, ...]) -> None:
    with pytest.raises(PenstockError) as caught:
        make(served(TokenizingServer("none", usage=False)), as_ids=as_ids)
    assert all(remedy in str(caught.value) for remedy in remedies)


def test_a_refused_request_is_quoted() -> None:
    def refuse(method: str, path: str, body: object = None) -> Reply:
        return Reply(404, {"error": {"message": "The model does not exist."}})

    with pytest.raises(PenstockError, match=r"/v1/completions answered 404 .*does not exist"):
        make(Served("no-such-model", fetch=refuse))


def test_ids_need_a_completions_endpoint() -> None:
    with pytest.raises(InvalidValueError, match="--endpoint /v1/completions"):
        make(served(TokenizingServer("vllm"), CHAT), as_ids=True)


def test_a_vocabulary_of_nothing() -> None:
    with pytest.raises(InvalidValueError, match="--vocab-size"):
        make(served(TokenizingServer()), as_ids=True, vocab_size=3)
