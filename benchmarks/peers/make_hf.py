"""Write a GGUF checkpoint of the Llama family as Hugging Face directories, in bfloat16 and float32.

usage: make_hf.py MODEL.gguf OUTPUT_DIRECTORY        (run it in the vLLM environment)

transformers reads GGUF, but cannot save a model loaded from it. The weights are therefore copied to
a new model whose configuration has no `quantization_config`.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM


def convert(gguf: Path, output: Path) -> None:
    """Write the weights of `gguf`, dequantised, to `output`/hf-f32 and `output`/hf-bf16, with
    tokenizer and chat template.
    """
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    source = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    weights = {
        name: tensor for name, tensor in source.state_dict().items() if name != "lm_head.weight"
    }
    config = source.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.name_or_path = ""
    for name, dtype in (("hf-f32", torch.float32), ("hf-bf16", torch.bfloat16)):
        config.dtype = dtype
        model = LlamaForCausalLM(config)
        result = model.load_state_dict(weights, strict=False)
        if set(result.missing_keys) - {"lm_head.weight"} or result.unexpected_keys:
            raise SystemExit(f"the weights do not fit the model: {result}")
        model.tie_weights()
        model.to(dtype)
        model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
        model.save_pretrained(output / name)
        tokenizer.save_pretrained(output / name)
        print(
            f"{output / name}: "
            f"{sum(f.stat().st_size for f in (output / name).iterdir()) / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
