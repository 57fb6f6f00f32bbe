"""Vectors of `penstock.LLM`, as a vLLM user asks for them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import LLM, PoolingParams, SamplingParams
from penstock.core import InvalidValueError, PenstockError
from tests.e2e.test_tiny import write_tokenizer

TEXTS = ["The capital of France is Paris.", "Paris, France", "A recipe for soup with leeks"]


@pytest.fixture(scope="module")
def tiny(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "qwen3"
    shutil.copytree(repository / "tests/fixtures/tiny/qwen3", directory)
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def llm(tiny: Path) -> Iterator[LLM]:
    pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")
    made = LLM(str(tiny), runner="pooling", max_num_seqs=4, kv_cache_memory_bytes="16MiB")
    yield made
    made.close()


def test_an_embedding_is_the_pooled_state_at_length_one(llm: LLM) -> None:
    raw = [list(each.outputs.data) for each in llm.encode(TEXTS, use_tqdm=False)]
    results = llm.embed(TEXTS, use_tqdm=False)
    for result, pooled in zip(results, raw, strict=True):
        length = math.sqrt(sum(number * number for number in pooled))
        scaled = [number / length for number in pooled]
        assert result.outputs.embedding == pytest.approx(scaled, rel=1e-6)
        assert result.outputs.hidden_size == len(pooled)
        assert result.finished
    assert [len(each.prompt_token_ids) for each in results] == [len(text) for text in TEXTS]


def test_a_vector_has_the_same_bits_alone_among_answers_and_from_the_cache(llm: LLM) -> None:
    def embedded(text: str) -> list[float]:
        llm.reset_prefix_cache()
        return llm.embed(text, use_tqdm=False)[0].outputs.embedding

    texts = [text * 3 for text in TEXTS]
    alone = [embedded(text) for text in texts]
    llm.generate(texts, SamplingParams(max_tokens=3), use_tqdm=False)
    together = llm.embed(texts, use_tqdm=False)
    assert [each.outputs.embedding for each in together] == alone
    assert all(each.num_cached_tokens > 0 for each in together)


def test_parameters(llm: LLM) -> None:
    params = PoolingParams(dimensions=8, normalize=False)
    (short,) = llm.embed(TEXTS[0], pooling_params=params, use_tqdm=False)
    raw = list(llm.encode(TEXTS[0], use_tqdm=False)[0].outputs.data)
    assert short.outputs.embedding == raw[:8]
    (cut,) = llm.embed(TEXTS[0], truncate_prompt_tokens=5, use_tqdm=False)
    assert bytes(cut.prompt_token_ids) == TEXTS[0][:5].encode()
    for wrong in (PoolingParams(dimensions=65), PoolingParams(truncate_prompt_tokens=0)):
        with pytest.raises(InvalidValueError):
            llm.embed("x", pooling_params=wrong, use_tqdm=False)
    limit = llm.llm_engine.model_config.max_model_len
    assert llm.embed([[1] * limit], use_tqdm=False)[0].outputs.embedding
    with pytest.raises(PenstockError, match="maximum model length"):
        llm.embed([[1] * (limit + 1)], use_tqdm=False)


def test_scores_are_cosines(llm: LLM) -> None:
    vectors = [each.outputs.embedding for each in llm.embed(TEXTS, use_tqdm=False)]
    scores = llm.score(TEXTS[0], TEXTS, use_tqdm=False)
    expected = [sum(a * b for a, b in zip(vectors[0], v, strict=True)) for v in vectors]
    assert [each.outputs.score for each in scores] == pytest.approx(expected, abs=1e-6)
    assert scores[0].outputs.score == pytest.approx(1.0, abs=1e-6)
    pairs = llm.score(TEXTS, TEXTS, use_tqdm=False)
    assert [each.outputs.score for each in pairs] == pytest.approx([1.0] * 3, abs=1e-6)
    with pytest.raises(InvalidValueError, match="one text, or 3"):
        llm.score(TEXTS[:2], TEXTS, use_tqdm=False)
    with pytest.raises(PenstockError, match="no classification head"):
        llm.classify("x", use_tqdm=False)


def test_a_mean_is_over_all_tokens(tiny: Path, tmp_path: Path, llm: LLM) -> None:
    directory = tmp_path / "mean"
    shutil.copytree(tiny, directory)
    kinds = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
    (directory / "modules.json").write_text(json.dumps(kinds))
    (directory / "1_Pooling").mkdir()
    settings = {"pooling_mode_mean_tokens": True}
    (directory / "1_Pooling/config.json").write_text(json.dumps(settings))
    text = "chunk by chunk"
    mean = LLM(str(directory), max_num_seqs=2, max_num_batched_tokens=4)
    found = list(mean.embed(text, use_tqdm=False)[0].outputs.embedding)
    mean.close()
    prefixes = [list(text[: end + 1].encode()) for end in range(len(text))]
    states = [list(each.outputs.data) for each in llm.encode(prefixes, use_tqdm=False)]
    expected = [sum(column) / len(text) for column in zip(*states, strict=True)]
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_classification_head_scores_and_writes_no_text(tiny: Path, tmp_path: Path) -> None:
    """A copy of the embedding as the head."""
    directory = tmp_path / "classifier"
    shutil.copytree(tiny, directory)
    config = json.loads((directory / "config.json").read_text())
    labels = {str(label): str(label) for label in range(config["vocab_size"])}
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": labels}
    (directory / "config.json").write_text(json.dumps(config))
    stored = (directory / "model.safetensors").read_bytes()
    size = int.from_bytes(stored[:8], "little")
    header = json.loads(stored[8 : 8 + size])
    data, embedding = stored[8 + size :], header["model.embed_tokens.weight"]
    begin, end = embedding["data_offsets"]
    added = [len(data), len(data) + end - begin]
    header["score.weight"] = {**embedding, "data_offsets": added}
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + data + data[begin:end]
    )
    llm = LLM(str(directory))
    (result,) = llm.classify("x", use_tqdm=False)
    assert sum(result.outputs.probs) == pytest.approx(1.0)
    assert result.outputs.num_classes == config["vocab_size"]
    with pytest.raises(PenstockError, match="writes no text"):
        llm.generate("x", use_tqdm=False)
    with pytest.raises(PenstockError, match="no embeddings"):
        llm.embed("x", use_tqdm=False)
    llm.close()
