"""Prompts with an exact number of tokens, for any server.

A *maker* has words that are single tokens. They come from a tokenizer file (`local`), from the
server's /tokenize (`served`), or from the token counts that it reports for requests of one output
token (`usage`). The maker turns ids of these words into a prompt, as text or as ids. It also
provides the number of tokens that the server adds to a prompt (`overhead`).
"""

from penstock_lab.bench.prompts.choose import make
from penstock_lab.bench.prompts.maker import PromptMaker
from penstock_lab.bench.prompts.server import Fetch, Reply, Served

__all__ = ["Fetch", "PromptMaker", "Reply", "Served", "make"]
