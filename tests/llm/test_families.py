"""Checkpoints of each family, from the files to the tokens: those that transformers gave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")

from penstock import LLM, SamplingParams
from tests.families import FAMILIES, GGUF_FAMILIES, GGUF_MAPPINGS, MAPPINGS
from tests.grammar.vocabulary import write_tokenizer
from tests.real_ranks import TINY


@pytest.mark.parametrize("file", FAMILIES + GGUF_FAMILIES + MAPPINGS + GGUF_MAPPINGS)
def test_greedy_answers_are_those_of_transformers(tmp_path: Path, file: str) -> None:
    """With a tokenizer beside them, because these checkpoints have none."""
    write_tokenizer(tmp_path, {})
    reference = json.loads((TINY / file.removesuffix(".gguf") / "reference.json").read_text())
    llm = LLM(
        str(TINY / file),
        tokenizer=str(tmp_path),
        dtype="float32",
        threads=1,
        kv_cache_memory_bytes="4MiB",
    )
    params = SamplingParams(temperature=0, max_tokens=len(reference["greedy"]), ignore_eos=True)
    try:
        prompts = [reference["tokens"]] * 2
        for answer in llm.generate(prompts, params, use_tqdm=False):
            assert answer.outputs[0].token_ids == reference["greedy"]
    finally:
        llm.close()
