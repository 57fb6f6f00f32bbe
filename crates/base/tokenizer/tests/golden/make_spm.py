"""Writes spm.json: a small SentencePiece BPE vocabulary and the ids that sentencepiece itself
gives.

    pip install sentencepiece && python make_spm.py

The model is trained on the source of a few standard modules with the settings of Llama 2 (BPE, byte
fallback, digits apart, no normalisation, a space put before the text), so the file differs between
Python versions.
"""

import argparse
import inspect
import io
import json
import textwrap
from pathlib import Path

import sentencepiece as spm

MODULES = (argparse, inspect, json, textwrap, io)
TEXTS = [
    "",
    " ",
    "hello",
    " hello",
    "  hello  world  ",
    "a",
    "ab  c   d    e     f      g",
    "The quick brown fox jumps over the lazy dog.",
    "def function(self, name=None): return name",
    "line\nbreak\n\n\ttab\r\n",
    "12345 3.14 2024-01-02",
    "naïve café Привет 你好 🦊 👨‍👩‍👧‍👦",
    "e\u0301 \u200b \u00a0x\u3000y",
    "▁ literal ▁▁ mark",
    "<0x41> is text",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "          ten spaces",
    "the argument parser parses the arguments of the parser",
    "\x00\x7f\u0080\uffff\U0010ffff",
    "don't DON'T \"quoted\" `code` --flag",
]


def kind(model: spm.SentencePieceProcessor, i: int) -> int:
    """token_type of the GGUF specification."""
    if model.is_unknown(i):
        return 2
    if model.is_control(i):
        return 3
    return 6 if model.is_byte(i) else 1


def main() -> None:
    sentences = [
        line
        for module in MODULES
        for line in inspect.getsource(module).splitlines()
        if line.strip()
    ]
    trained = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=trained,
        model_type="bpe",
        vocab_size=900,
        byte_fallback=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    model = spm.SentencePieceProcessor(model_proto=trained.getvalue())
    size = model.vocab_size()
    golden = {
        "tokens": [model.id_to_piece(i) for i in range(size)],
        "scores": [model.get_score(i) for i in range(size)],
        "types": [kind(model, i) for i in range(size)],
        "cases": [
            {"text": text, "ids": model.encode(text), "decoded": model.decode(model.encode(text))}
            for text in TEXTS
        ],
    }
    Path(__file__).with_name("spm.json").write_text(json.dumps(golden) + "\n")


main()
