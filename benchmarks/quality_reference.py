"""Distributions of the next token in float32, by transformers: the reference of quality.py.

usage: quality_reference.py MODEL.gguf OUTPUT.json [--windows 8] [--tokens 512]

Run it in an environment with torch, transformers and gguf, such as vLLM's (peers/install_vllm.sh).
transformers dequantises the file and computes in float32. The text is the help of Python's own
`help()`, which each Python has; its digest is in the output.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
from pathlib import Path
from pydoc_data.topics import topics  # type: ignore[import-untyped]

LIKELIEST = 10


def main() -> None:
    import torch
    import transformers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512, help="in a window")
    parsed = parser.parse_args()

    where, name = parsed.model.parent, parsed.model.name
    tokenizer = transformers.AutoTokenizer.from_pretrained(where, gguf_file=name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        where, gguf_file=name, dtype=torch.float32
    ).eval()
    text = "\n".join(topics[key] for key in sorted(topics))
    ids = tokenizer(text, add_special_tokens=False).input_ids
    windows = [
        ids[start : start + parsed.tokens]
        for start in range(0, parsed.windows * parsed.tokens, parsed.tokens)
    ]
    rows = []
    for number, window in enumerate(windows, 1):
        with torch.inference_mode():
            logits = model(torch.tensor([window])).logits[0, :-1]
        known = torch.log_softmax(logits.double(), -1)
        best = known.topk(LIKELIEST)
        actual = known.gather(1, torch.tensor(window[1:])[:, None])[:, 0]
        rows.append(
            {
                "ids": window,
                "actual": actual.tolist(),
                "likeliest": best.indices.tolist(),
                "logprobs": best.values.tolist(),
            }
        )
        print(f"window {number} of {len(windows)}", flush=True)
    about = {
        "model": name,
        "text": f"pydoc_data.topics of Python {platform.python_version()}",
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    parsed.output.write_text(json.dumps({**about, "windows": rows}))


if __name__ == "__main__":
    main()
