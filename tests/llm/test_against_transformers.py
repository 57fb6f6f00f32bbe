"""Results on a tiny checkpoint against the logits that transformers computed for it."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, BeamSearchParams, SamplingParams
from penstock.core import InvalidValueError, PenstockError
from penstock.llm import Logprob
from tests.e2e.test_tiny import write_tokenizer

np = pytest.importorskip("numpy", reason="install numpy to compare logits")
TOLERANCE = 2e-3
ADDED = {
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}


@pytest.fixture(scope="module")
def tiny(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "llama"
    shutil.copytree(repository / "tests/fixtures/tiny/llama", directory)
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def reference(tiny: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((tiny / "reference.json").read_text())
    logits = np.fromfile(tiny / "logits.f32", np.float32).reshape(facts["shape"])
    logits = logits.astype(np.float64)
    facts["logprobs"] = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return facts


@pytest.fixture(scope="module")
def llm(tiny: Path) -> Iterator[LLM]:
    pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")
    made = LLM(str(tiny), dtype="float32", max_num_seqs=16, kv_cache_memory_bytes="16MiB")
    yield made
    made.close()


def test_log_probabilities_of_a_prompt_are_those_of_transformers(
    llm: LLM, reference: dict[str, Any]
) -> None:
    tokens = reference["tokens"]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=5, logprobs=5)
    result = llm.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)[0]
    rows = result.prompt_logprobs
    assert rows is not None
    assert rows[0] is None
    assert len(rows) == len(tokens)
    after = result.outputs[0].logprobs
    assert after is not None
    scored = [*rows[1:], after[0]]
    following = [*tokens[1:], result.outputs[0].token_ids[0]]
    for right, row, token in zip(reference["logprobs"], scored, following, strict=True):
        assert row is not None
        check_row(right, row, token)


def check_row(right: Any, row: dict[int, Logprob], token: int) -> None:
    """The token first, then the five most likely in their order; each with its own rank."""
    order = [int(each) for each in np.argsort(-right, kind="stable")]
    assert next(iter(row)) == token
    assert len(row) == (5 if token in order[:5] else 6)
    for other, logprob in row.items():
        assert logprob.logprob == pytest.approx(right[other], abs=TOLERANCE)
        assert logprob.rank is not None
        assert abs(right[order[logprob.rank - 1]] - right[other]) < TOLERANCE
        assert logprob.decoded_token == bytes([other]).decode(errors="replace")


def test_greedy_answers_are_those_of_transformers(llm: LLM, reference: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0, max_tokens=len(reference["greedy"]), ignore_eos=True)
    (result,) = llm.generate([reference["tokens"]], params, use_tqdm=False)
    assert result.outputs[0].token_ids == reference["greedy"]


def test_settings_of_the_checkpoint_are_the_defaults(llm: LLM) -> None:
    params = llm.get_default_sampling_params()
    assert (params.temperature, params.top_p) == (0.6, 0.9)


def logprob_of(llm: LLM, prompt: list[int], continued: list[int]) -> float:
    """Log-probability of a continuation, scored as a prompt."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    rows = llm.generate([prompt + continued], params, use_tqdm=False)[0].prompt_logprobs
    assert rows is not None
    last = rows[len(prompt) :]
    return sum(
        row[token].logprob for token, row in zip(continued, last, strict=True) if row is not None
    )


def test_beam_search_finds_the_best_of_what_it_looks_at(
    llm: LLM, reference: dict[str, Any]
) -> None:
    """Two tokens and three beams: the beams after the first token are its three most likely
    tokens, by transformers' logits, and the best continuations of those are scored one by one.
    """
    prompt, right = reference["tokens"], reference["logprobs"][-1]
    params = BeamSearchParams(beam_width=3, max_tokens=2, ignore_eos=True)
    (found,) = llm.beam_search([{"prompt_token_ids": prompt}], params)
    first = [int(token) for token in np.argsort(-right)[:3]]
    each: list[list[int]] = []
    for token in first:
        options = SamplingParams(temperature=0, max_tokens=1, logprobs=3)
        (result,) = llm.generate([[*prompt, token]], options, use_tqdm=False)
        rows = result.outputs[0].logprobs
        assert rows is not None
        each += [[token, other] for other in rows[0]]
    best = sorted(each, key=lambda pair: -logprob_of(llm, prompt, pair))[:3]
    assert [beam.tokens[len(prompt) :] for beam in found.sequences] == best
    for beam, pair in zip(found.sequences, best, strict=True):
        assert beam.cum_logprob == pytest.approx(logprob_of(llm, prompt, pair), abs=TOLERANCE)
        assert beam.finish_reason == "length"
        assert beam.text is not None


def test_one_beam_is_greedy(llm: LLM, reference: dict[str, Any]) -> None:
    prompts = [reference["tokens"], reference["tokens"][:9]]
    params = BeamSearchParams(beam_width=1, max_tokens=8, ignore_eos=True)
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    answers = llm.generate(prompts, greedy, use_tqdm=False)
    for limit in (None, 1):
        found = llm.beam_search(prompts, params, concurrency_limit=limit)
        for prompt, answer, output in itertools.zip_longest(prompts, answers, found):
            assert output.sequences[0].tokens == prompt + answer.outputs[0].token_ids


def test_a_beam_ends_at_an_end_token(llm: LLM, reference: dict[str, Any]) -> None:
    """The greedy answer has the end token 2; the beam before it has ended there."""
    at = reference["greedy"].index(2)
    params = BeamSearchParams(beam_width=1, max_tokens=len(reference["greedy"]))
    (found,) = llm.beam_search([reference["tokens"]], params)
    ended = [beam for beam in found.sequences if beam.finish_reason == "stop"]
    assert len(found.sequences) == 1
    for beam in ended:
        assert beam.tokens[len(reference["tokens"]) :] == reference["greedy"][:at]


def test_beam_search_refuses_what_it_cannot_do() -> None:
    whole: dict[str, Any] = {"beam_width": 2, "max_tokens": 4}
    for options in ({"beam_width": 11}, {"max_tokens": 0}, {"temperature": 0.5}):
        with pytest.raises(InvalidValueError, match=next(iter(options))):
            BeamSearchParams(**{**whole, **options})


def test_a_tokenizer_larger_than_the_embedding_is_refused(tiny: Path, tmp_path: Path) -> None:
    directory = tmp_path / "larger"
    shutil.copytree(tiny, directory)
    file = directory / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["added_tokens"] = [{"id": 256, "content": "<more>", **ADDED}]
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(PenstockError, match=r"has 257 tokens and .* embedding 256 rows"):
        LLM(str(directory), dtype="float32")
