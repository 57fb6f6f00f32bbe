"""Generate with the backend of echo.py, which is beside this file: PYTHONPATH=examples."""

import argparse
import sys

from penstock import LLM, SamplingParams

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("prompt", nargs="?", default="Penstock says echo")
parser.add_argument("--model", default="smollm2", help="its tokenizer and shape are used")
arguments = parser.parse_args()

llm = LLM(arguments.model, device="backend.echo")
(output,) = llm.generate([arguments.prompt], SamplingParams(max_tokens=4, temperature=0))
print(f"{arguments.prompt} ->{output.outputs[0].text}")

last_token = output.prompt_token_ids[-1]
if output.outputs[0].token_ids != [last_token] * 4:
    sys.exit("the backend did not repeat the last token")
