"""ShareGPT files as `vllm bench serve` samples them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import PenstockError
from penstock_lab.bench.datasets import FileOptions, sharegpt_requests
from tests.fakes.tokenizing import PlainMaker


def conversation(prompt: int, answer: int, name: str = "w") -> dict[str, object]:
    turns = [("human", prompt, name), ("gpt", answer, "a")]
    return {
        "conversations": [{"from": who, "value": " ".join([word] * n)} for who, n, word in turns]
    }


def written(tmp_path: Path, entries: object) -> Path:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(entries))
    return path


def lengths(path: Path, maker: PlainMaker | None = None, **fields: object) -> list[tuple[int, int]]:
    options = FileOptions(path, **({"oversample": False, "shuffle": False} | fields))
    return [
        (r.input_tokens, r.output_tokens)
        for r in sharegpt_requests(options, maker or PlainMaker(), 0)
    ]


def test_filters(tmp_path: Path) -> None:
    kept = [(4, 4), (1024, 1024), (10, 2038), (100, 7)]
    out = [(3, 50), (1025, 50), (50, 3), (1000, 1049), (10, 2039)]
    path = written(tmp_path, [conversation(*pair) for pair in [*kept, *out]])
    assert lengths(path) == kept


def test_an_output_length_that_is_forced(tmp_path: Path) -> None:
    path = written(tmp_path, [conversation(10, 1), conversation(2, 50), conversation(1024, 9)])
    assert lengths(path, output_len=2) == [(10, 2), (1024, 2)]
    assert lengths(path, output_len=1025) == [(10, 1025)]


def test_the_tokenizers_tokens_count_and_the_templates_do_not(tmp_path: Path) -> None:
    path = written(tmp_path, [conversation(3, 8), conversation(1024, 8)])
    assert lengths(path, PlainMaker(special=1)) == [(4, 8)]
    assert lengths(path, PlainMaker(template=5)) == [(1029, 8)]


def test_the_first_question_and_its_answer(tmp_path: Path) -> None:
    turns = [("system", "be brief"), ("gpt", "hello you there friend"), ("human", ("one two three "
                                                                                  "four")),
             ("gpt", "a b c d e"), ("human", ("five six seven eight "
                                             "nine")), ("gpt", "f g h i")]  # fmt: skip
    entry = {"conversations": [{"from": who, "value": text} for who, text in turns]}
    path = written(tmp_path, [entry])
    (request,) = sharegpt_requests(FileOptions(path, 1), PlainMaker(), 0)
    assert (request.prompt, request.output_tokens) == ("one two three four", 5)


def test_entries_without_a_conversation_are_passed_over(tmp_path: Path) -> None:
    entries = [
        {"id": "x"},
        {"conversations": []},
        {"conversations": [{"from": "gpt", "value": "hm"}]},
    ]
    assert lengths(written(tmp_path, [*entries, conversation(5, 5)])) == [(5, 5)]


def test_shuffled_by_seed(tmp_path: Path) -> None:
    path = written(tmp_path, [conversation(5 + n, 5) for n in range(50)])

    def order(seed: int) -> list[int]:
        return [
            r.input_tokens for r in sharegpt_requests(FileOptions(path, 50), PlainMaker(), seed)
        ]

    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == list(range(5, 55))


def test_oversampling(tmp_path: Path) -> None:
    path = written(tmp_path, [conversation(5, 5), conversation(6, 6)])
    assert lengths(path, num_prompts=20) == [(5, 5), (6, 6)]
    more = lengths(path, num_prompts=20, oversample=True)
    assert len(more) == 20
    assert set(more) == {(5, 5), (6, 6)}


def test_a_maker_that_cannot_count(tmp_path: Path) -> None:
    path = written(tmp_path, [conversation(5, 5)])
    with pytest.raises(PenstockError, match="--tokenizer"):
        lengths(path, PlainMaker(counts=False))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[\n{"conversations": [}\n]', "line 2"),
        ('{"a": 1}', "no list"),
        ("[3]", "entry 0"),
        ('[{"conversations": 3}]', "entry 0"),
        ('[{}, {"conversations": [{"value": "hm"}]}]', "entry 1"),
        ("[" * 100_000, "expected a list"),
        ("[]", "no request that fits"),
    ],
)
def test_malformed_files_say_where(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(PenstockError, match=named) as caught:
        lengths(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="No such file"):
        lengths(tmp_path / "nowhere.json")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from(["human", "gpt", "w w w w w"]),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["conversations", "from", "value"]), inner)
    ),
)


@given(entries=JSON)
def test_any_json_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, entries: object
) -> None:
    path = written(tmp_path_factory.mktemp("any"), entries)
    refusal = ""
    try:
        assert lengths(path)
    except PenstockError as error:
        refusal = str(error)
    assert not refusal or str(path) in refusal
