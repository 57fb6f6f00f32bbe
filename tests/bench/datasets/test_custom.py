"""One's own prompts."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.datasets import FileOptions, custom_requests
from tests.fakes.tokenizing import PlainMaker

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why is it so"}]


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    )
    return path


def read(path: Path, chat: bool = False, maker: PlainMaker | None = None, **fields: object):
    options = FileOptions(path, **({"shuffle": False, "output_len": 256} | fields))
    return custom_requests(options, maker or PlainMaker(), 0, chat)


def test_each_line_says_how_long(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"prompt": "a b", "output_tokens": 7}, "", {"prompt": "c", "output_len": 9}
    )
    requests = read(path, output_len=None)
    assert [(r.prompt, r.input_tokens, r.output_tokens) for r in requests] == [
        ("a b", 2, 7),
        ("c", 1, 9),
    ]


def test_the_flag_overrides_the_lines(tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": "a", "output_tokens": 7}, {"prompt": "b"})
    assert [r.output_tokens for r in read(path, output_len=33)] == [33, 33]
    assert [r.output_tokens for r in read(path)] == [256, 256]


def test_messages(tmp_path: Path) -> None:
    path = written(tmp_path, {"messages": MESSAGES}, {"prompt": MESSAGES}, {"prompt": "one two"})
    requests = read(path, chat=True, maker=PlainMaker(template=5))
    assert [r.prompt for r in requests] == [MESSAGES, MESSAGES, "one two"]
    assert [r.input_tokens for r in requests] == [11, 11, 7]


def test_messages_need_a_chat_endpoint(tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": "a"}, {"messages": MESSAGES})
    with pytest.raises(PenstockError, match=r"line 2: .*--endpoint /v1/chat/completions"):
        read(path)


def test_how_many(tmp_path: Path) -> None:
    path = written(tmp_path, *({"prompt": f"p{n}"} for n in range(5)))
    assert len(read(path)) == 5
    assert [r.prompt for r in read(path, num_prompts=3)] == ["p0", "p1", "p2"]
    assert len(read(path, num_prompts=50)) == 50
    assert len(read(path, num_prompts=50, oversample=False)) == 5


def test_shuffled_by_seed(tmp_path: Path) -> None:
    path = written(tmp_path, *({"prompt": f"p{n}"} for n in range(40)))

    def order(seed: int) -> list[object]:
        return [
            r.prompt
            for r in custom_requests(
                FileOptions(path, output_len=256), PlainMaker(), seed, chat=False
            )
        ]

    assert order(1) == order(1) != order(2)
    assert sorted(order(1), key=str) == sorted(f"p{n}" for n in range(40))


def test_unknown_lengths_are_zero(tmp_path: Path) -> None:
    assert (
        read(written(tmp_path, {"prompt": "a"}), maker=PlainMaker(counts=False))[0].input_tokens
        == 0
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "one JSON object"),
        ("[]", "one JSON object"),
        ("{}", '"prompt"'),
        ('{"prompt": ""}', '"prompt"'),
        ('{"prompt": [1, 2]}', '"prompt"'),
        ('{"prompt": [{"role": "user"}]}', '"prompt"'),
        ('{"prompt": "a"}', "output_tokens"),
        ('{"prompt": "a", "output_tokens": "7"}', "output_tokens"),
        ('{"prompt": "a", "output_tokens": true}', "output_tokens"),
        ('{"prompt": "a", "output_tokens": 0}', "output_tokens"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, line: str, expected: str) -> None:
    path = written(tmp_path, {"prompt": "a", "output_tokens": 1}, line)
    with pytest.raises(PenstockError) as caught:
        read(path, output_len=None)
    assert f"{path}, line 2: " in str(caught.value)
    assert expected in str(caught.value)


def test_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="no request"):
        read(written(tmp_path))


@pytest.mark.parametrize("length", [0, -2])
def test_a_length_of_nothing(tmp_path: Path, length: int) -> None:
    with pytest.raises(InvalidValueError, match="--custom-output-len"):
        read(tmp_path / "none.jsonl", output_len=length)


@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n' + content)
    refusal = ""
    try:
        assert read(path)[0].prompt
    except PenstockError as error:
        refusal = str(error)
    assert not refusal or str(path) in refusal
