"""Traces as they are published, and as they should not be."""

import csv
import json
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.traces import Arrival, read

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text, newline="")
    return path


@pytest.mark.parametrize(
    ("zone", "fraction"), [("", "6805900"), ("+00:00", "680590"), ("Z", "68059")]
)
def test_azure_2023_and_2024(tmp_path: Path, zone: str, fraction: str) -> None:
    first = f"2023-11-16 23:59:59.{fraction}{zone},374,44\r\n"
    path = written(tmp_path, f"{AZURE}{first}2023-11-17 00:00:00{zone},396,109\r\n\r\n")
    trace = read(path)
    assert trace.format == "azure"
    assert trace.arrivals == (Arrival(0.0, 374, 44), Arrival(0.31941, 396, 109))
    assert trace.span == 0.31941


def test_a_tenth_of_a_microsecond_is_kept(tmp_path: Path) -> None:
    lines = "2023-11-16 18:15:46.6805900,1,1\n2023-11-16 18:15:46.6805901,1,1\n"
    assert read(written(tmp_path, AZURE + lines)).span == 1e-7


def test_mooncake(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 4500, "input_length": 10, "output_length": 7, "hash_ids": [3]},
    ]
    trace = read(written(tmp_path, "\n".join(map(json.dumps, lines))))
    assert trace.format == "mooncake"
    assert trace.arrivals == (Arrival(0.0, 600, 5, (1, 2), 512), Arrival(1.5, 10, 7, (3,), 512))


def test_bailian_is_in_seconds_and_blocks_of_16(tmp_path: Path) -> None:
    lines = [
        {
            "chat_id": 1,
            "timestamp": 1e-05,
            "input_length": 20,
            "output_length": 5,
            "hash_ids": [1, 2],
        },
        {
            "chat_id": 2,
            "timestamp": 61.11401,
            "input_length": 9,
            "output_length": 5,
            "type": "text",
        },
    ]
    trace = read(written(tmp_path, "\n".join(map(json.dumps, lines))))
    assert trace.format == "bailian"
    assert trace.arrivals == (Arrival(0.0, 20, 5, (1, 2), 16), Arrival(61.114, 9, 5, (), 0))


@pytest.mark.parametrize("more", [("", ""), ("Session ID,Elapsed time,", "abc,1.5,")])
def test_burstgpt_drops_failures_and_counts_them(tmp_path: Path, more: tuple[str, str]) -> None:
    rows = [
        "5,ChatGPT,472,18,490,Conversation log",
        "45.5,GPT-4,1087,0,1087,API log",
        "47,GPT-4,9,3,12,API log",
    ]
    text = more[0] + BURST + "".join(f"{more[1]}{row}\n" for row in rows)
    trace = read(written(tmp_path, text))
    assert trace.format == "burstgpt"
    assert trace.arrivals == (Arrival(0.0, 472, 18), Arrival(42.0, 9, 3))
    assert trace.failures == 1


def test_rows_out_of_order_are_sorted(tmp_path: Path) -> None:
    trace = read(written(tmp_path, BURST + "9,m,2,2,4,l\n1,m,1,1,2,l\n9,m,3,3,6,l\n"))
    assert [(a.at, a.input_tokens) for a in trace.arrivals] == [(0.0, 1), (8.0, 2), (8.0, 3)]


def test_the_format_can_be_said(tmp_path: Path) -> None:
    path = written(tmp_path, '{"timestamp": 2, "input_length": 1, "output_length": 1}\n')
    assert read(path, "bailian").format == "bailian"
    with pytest.raises(InvalidValueError, match="azure, mooncake, bailian, burstgpt"):
        read(path, "parquet")


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("a,b,c\n1,2,3\n", 1, "ContextTokens"),
        ("", 1, "ContextTokens"),
        ("TIMESTAMP,ContextTokens\n", 1, "GeneratedTokens"),
        (f"{AZURE}2023-11-16 18:15:46.68,1\n", 2, "3 values"),
        (f"{AZURE}2023-11-16 18:15:46.68,1,1\n16/11/2023,1,1\n", 3, "TIMESTAMP"),
        (f"{AZURE}2023-13-16 18:15:46.68,1,1\n", 2, "TIMESTAMP"),
        (f"{AZURE}2023-11-16 18:15:46.68,-1,1\n", 2, "ContextTokens"),
        (f"{AZURE}2023-11-16 18:15:46.68,1,1.5\n", 2, "GeneratedTokens"),
        (f"{AZURE}2023-11-16 18:15:46.68,1,99999999999\n", 2, "GeneratedTokens"),
        (f"{BURST}nan,m,1,1,2,l\n", 2, "seconds"),
        (f"{BURST}1,m,1,,2,l\n", 2, "Response tokens"),
        (
            '{"timestamp": 1, "input_length": 1, "output_length": 1}\n{"timestamp"\n',
            2,
            "one JSON object",
        ),
        ('{"timestamp": "1x", "input_length": 1, "output_length": 1}\n', 1, "milliseconds"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}\n', 1, "milliseconds"),
        ('{"timestamp": true, "input_length": 1, "output_length": 1}\n', 1, "milliseconds"),
        ('{"timestamp": 1, "output_length": 1}\n', 1, "input_length"),
        ('{"timestamp": 1, "input_length": true, "output_length": 1}\n', 1, "input_length"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 3}\n', 1, "hash_ids"),
        (
            '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}\n',
            1,
            "hash_ids",
        ),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, text: str, line: int, expected: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(PenstockError) as caught:
        read(path)
    assert f"{path}, line {line}: " in str(caught.value)
    assert expected in str(caught.value)


def test_files_without_a_request(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="1 failed"):
        read(written(tmp_path, f"{BURST}1,m,1,0,1,l\n"))
    with pytest.raises(PenstockError, match="No such file"):
        read(tmp_path / "nowhere")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PenstockError, match="not UTF-8"):
        read(tmp_path / "binary")


HEADS = [
    AZURE.encode(),
    BURST.encode(),
    b'{"timestamp": 1, "input_length": 1, "output_length": 1}\n',
    b"",
]
PIECES = st.sampled_from(
    [b",", b"\n", b'"', b"2023-11-16 18:15:46.68", b"7", b"-1", b"{", b"}", b"\x00", b"1e9"]
)


@given(head=st.sampled_from(HEADS), tail=st.lists(PIECES | st.binary(max_size=6), max_size=20))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, head: bytes, tail: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("any") / "trace"
    path.write_bytes(head + b"".join(tail))
    refusal = ""
    try:
        times = [arrival.at for arrival in read(path).arrivals]
        assert times == sorted(times)
        assert times[0] == 0
    except PenstockError as error:
        refusal = str(error)
    assert not refusal or str(path) in refusal


JSON_VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())
)
FIELDS = st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids", "chat_id"])


@given(rows=st.lists(st.dictionaries(FIELDS, JSON_VALUES), min_size=1))
def test_any_json_lines_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]
) -> None:
    path = tmp_path_factory.mktemp("any") / "trace"
    path.write_text("\n".join(map(json.dumps, rows)))
    refusal = ""
    try:
        assert len(read(path).arrivals) == len(rows)
    except PenstockError as error:
        refusal = str(error)
    assert not refusal or str(path) in refusal


def test_the_azure_conversation_trace(shared: Path) -> None:
    path = shared / "data/traces/azure_llm_2023_conv.csv"
    trace = read(path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(trace.arrivals) == len(rows) == 19_366
    first = datetime.fromisoformat(rows[0]["TIMESTAMP"][:26])
    for index in (0, 1, 777, 10_000, 19_365):
        row, arrival = rows[index], trace.arrivals[index]
        since = (datetime.fromisoformat(row["TIMESTAMP"][:26]) - first).total_seconds()
        assert arrival.at == pytest.approx(since, abs=2e-6)
        assert (arrival.input_tokens, arrival.output_tokens) == (
            int(row["ContextTokens"]),
            int(row["GeneratedTokens"]),
        )
    assert trace.span == pytest.approx(3501.721937, abs=1e-6)


def test_the_mooncake_conversation_trace(shared: Path) -> None:
    path = shared / "data/traces/mooncake_conversation.jsonl"
    trace = read(path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(trace.arrivals) == len(rows) == 12_031
    assert trace.span == rows[-1]["timestamp"] / 1000 == 3536.999
    assert [a.at for a in trace.arrivals] == [row["timestamp"] / 1000 for row in rows]
    assert [list(a.hash_ids) for a in trace.arrivals] == [row["hash_ids"] for row in rows]
    assert sum(a.input_tokens for a in trace.arrivals) == sum(row["input_length"] for row in rows)
