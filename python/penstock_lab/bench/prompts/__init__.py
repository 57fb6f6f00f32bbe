"""Prompts with an exact number of tokens, for any server.

A *maker* has words that are single tokens. They come from a tokenizer file (`local`), from the
server's /tokenize (`served`), or from its token counts for one-token requests (`usage`). The maker
converts their ids to text or leaves them as ids, and has the number of tokens that the server adds
(`overhead`).
"""

from penstock_lab.bench.prompts.choose import make
from penstock_lab.bench.prompts.maker import PromptMaker
from penstock_lab.bench.prompts.server import Fetch, Reply, Served

__all__ = ["Fetch", "PromptMaker", "Reply", "Served", "make"]
