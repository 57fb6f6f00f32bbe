"""Writes tiktoken.json: a small tiktoken.model as Kimi-K2 has one, and what the tiktoken package
encodes with it and Kimi's splitting rule. Needs `pip install tiktoken`.
"""

import base64
import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import regex
import tiktoken

SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = (
    rf"[\p{{{first}}}{rest}&&[^\p{{Han}}]]"
    for first, rest in (
        ("Lu", r"\p{Lt}\p{Lm}\p{Lo}\p{M}"),
        ("Ll", r"\p{Lm}\p{Lo}\p{M}"),
    )
)
HEAD = r"[^\r\n\p{L}\p{N}]?"
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        f"{HEAD}{UPPER}*{LOWER}+{SUFFIX}",
        f"{HEAD}{UPPER}+{LOWER}*{SUFFIX}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
CORPUS = """The newlines of a text, new lines and the lines between them: don't split what IT'S.
def main(values):
    return [value + 1 for value in values if value != 1234567]
\tBanana bananas banana; aaaa aaaaa aaaaaaa abababab. 漢字かな交じり文と漢字、你好世界，你好。
Ünïcode naïve Ελλάδα Привет мир, привет МИР! 12 123 1234 12345 émigré e\u0301 \U0001f98a\U0001f98a
<|not special|>\r\n\r\n   spaces    end
"""
NAMED = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 254: "[UNK]", 255: "[PAD]"}
TOKENS, CASES = 440, 60


def trained() -> dict[bytes, int]:
    """Ranks by counting pairs, as any BPE is trained."""
    words = [[bytes([b]) for b in word.encode()] for word in regex.findall(r"\s?\S+|\s+", CORPUS)]
    # Bytes in an order of their own, as in published files.
    ranks = {bytes([(b * 37 + 11) % 256]): b for b in range(256)}
    while len(ranks) < TOKENS:
        pairs = Counter(pair for word in words for pair in pairwise(word))
        (left, right), _ = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        ranks.setdefault(left + right, len(ranks))
        for word in words:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == (left, right):
                    word[at : at + 2] = [left + right]
                at += 1
    return ranks


def main() -> None:
    ranks = trained()
    first = len(ranks)
    special = {NAMED.get(i, f"<|reserved_token_{first + i}|>"): first + i for i in range(256)}
    encoding = tiktoken.Encoding(
        name="kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special
    )
    draw = random.Random(5)
    texts = ["", "[BOS]<|im_user|>user<|im_end|>x", f"a<|reserved_token_{first + 9}|>b", CORPUS]
    for _ in range(CASES):
        parts = (draw.randrange(len(CORPUS)) for _ in range(draw.randrange(1, 6)))
        texts.append("".join(CORPUS[at : at + draw.randrange(1, 30)] for at in parts))
    lines = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in ranks.items()]
    golden = {
        "model": "\n".join(lines) + "\n",
        "config": {
            "tokenizer_class": "TikTokenTokenizer",
            "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
            "bos_token": "[BOS]",
            "eos_token": "[EOS]",
            "added_tokens_decoder": {
                str(first + i): {"content": text, "special": True} for i, text in NAMED.items()
            },
        },
        "cases": [[text, encoding.encode(text, allowed_special="all")] for text in texts],
    }
    (Path(__file__).parent / "tiktoken.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
