"""Writes smollm2.json: token ids of hostile texts under the default model's tokenizer.

An implementation of byte-level BPE from its definition (split, map bytes to symbols, join the pair
of lowest rank until none is left), sharing no code with the `tokenizers` crate. It needs `pip
install gguf regex`:

    python make_golden.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import json
import sys
from itertools import pairwise
from pathlib import Path

import regex
from gguf import GGUFReader

CONTROL_TYPES = (2, 3, 4)  # unknown, control, user-defined: matched in the text as written
WORDS = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
DIGIT = regex.compile(r"(\p{N})")

TEXTS = [
    "",
    " ",
    "  ",
    "   a   b    ",
    "\n",
    "\n\n\n",
    " \n \n ",
    "\t\tindented\t\n",
    "\r\nwindows\r\n",
    "a\u00a0b\u2003c\u3000d",
    "Hello, world!",
    "hello  world   again",
    "The quick brown fox jumps over the lazy dog.",
    "don't you've I'm we'll they'd it's you're",
    "DON'T YOU'VE I'M IT'S",
    "'s 'x ''' \"\"\"",
    "0",
    "12345",
    "1 22 333 4444 55555",
    "3.14159e-10 -1,000,000.00 0x7fff",
    "year2024month12",
    "١٢٣ ４５６ ²³ ½ Ⅳ",
    "snake_case camelCase PascalCase kebab-case",
    "def f(x):\n    return x**2  # square\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i]; }\n",
    '<div class="x">&amp;</div>',
    '{"key": [1, 2.5, null, true]}',
    "SELECT * FROM t WHERE a != 'b';",
    "https://example.org/path?q=1&r=2#frag",
    "user@example.org",
    "C:\\Users\\name\\file.txt",
    "--------------------",
    "====\n****\n####",
    "!?!?...;;;:::",
    "naïve café résumé Zürich",
    "e\u0301 n\u0303 a\u0308\u0323",
    "Straße ſ ﬁ Ǆ",
    "Привет, мир! Как дела?",
    "Γειά σου Κόσμε",
    "مرحبا بالعالم، كيف الحال؟",
    "שלום עולם",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "你好，世界！",
    "こんにちは世界。カタカナ",
    "안녕하세요 세계",
    "漢字かな交じり文123テスト",
    "🦊",
    "🙂🙃😀 text 🎉🎉",
    "👨‍👩‍👧‍👦 👍🏽 🏳️‍🌈",
    "🇫🇷🇩🇪🇯🇵",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛",
    "\u200b\u200d\ufeff\u2060",
    "\u202eright to left\u202c",
    "\x00\x01\x02\x7f\x1b[0m",
    "\u0080\u009f\u00ad",
    "\U0010ffff\ufffd\ufffe",
    "½⅓ × ÷ ± ≠ ≤ ∑ ∫ √ ∞",
    "$100 €50 £20 ¥1000 ₿1",
    "“quotes” ‘single’ — dash … ellipsis",
    "<|im_start|>user\nhi<|im_end|>\n",
    "a<|endoftext|>b",
    " <|im_end|> <|im_end|>",
    "<|im_start|",
    "<|IM_START|>",
    "<|im_<|im_end|>start|>",
    "<file_sep><filename>x.py<empty_output>",
    "a" * 300,
    " " * 70 + "x",
    "ab" * 120 + "\n" * 40,
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "ĠhelloĊ Ġ is not a space",
    "▁metaspace▁text <0x41>",
    "z̸̡a̷̢l̵̨g̶̛o̴",
]


def byte_symbols() -> dict[int, str]:
    """Printable Latin-1 stands for itself, every other byte for the next code point from U+0100."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in own]
    return {byte: chr(byte) for byte in own} | {byte: chr(0x100 + n) for n, byte in enumerate(rest)}


class Bpe:
    def __init__(self, path: str) -> None:
        fields = GGUFReader(path).fields
        tokens = fields["tokenizer.ggml.tokens"].contents()
        types = fields["tokenizer.ggml.token_type"].contents()
        assert fields["tokenizer.ggml.pre"].contents() == "smollm"
        self.tokens = tokens
        self.ids = {token: i for i, token in enumerate(tokens)}
        merges = fields["tokenizer.ggml.merges"].contents()
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.symbols = byte_symbols()
        self.bytes = {symbol: byte for byte, symbol in self.symbols.items()}
        self.special = {
            token for token, kind in zip(tokens, types, strict=True) if kind in CONTROL_TYPES
        }
        by_length = sorted(self.special, key=len, reverse=True)
        self.special_pattern = regex.compile("(" + "|".join(map(regex.escape, by_length)) + ")")

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self.special_pattern.split(text):
            if part in self.special:
                ids.append(self.ids[part])
                continue
            for digits_apart in filter(None, DIGIT.split(part)):
                for word in WORDS.findall(digits_apart):
                    ids += self.word(word)
        return ids

    def word(self, word: str) -> list[int]:
        symbols = [self.symbols[byte] for byte in word.encode()]
        symbols = [symbol for symbol in symbols if symbol in self.ids]
        while len(symbols) > 1:
            pairs = list(pairwise(symbols))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            at = pairs.index(best)
            symbols[at : at + 2] = ["".join(best)]
        return [self.ids[symbol] for symbol in symbols]

    def decode(self, ids: list[int]) -> str:
        out = b""
        for token in (self.tokens[i] for i in ids):
            out += (
                token.encode()
                if token in self.special
                else bytes(self.bytes[symbol] for symbol in token)
            )
        return out.decode(errors="replace")


def main() -> None:
    bpe = Bpe(sys.argv[1])
    rows = []
    for text in TEXTS:
        ids = bpe.encode(text)
        rows.append(json.dumps({"text": text, "ids": ids, "decoded": bpe.decode(ids)}))
    Path(__file__).with_name("smollm2.json").write_text("[\n" + ",\n".join(rows) + "\n]\n")


main()
