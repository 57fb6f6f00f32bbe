"""Prompts of an exact number of tokens, for any server.

A *maker* has words that are one token each (`local`: of a tokenizer's file; `served`: of the
server's /tokenize; `usage`: by the server's counts for one-token requests). It turns their ids into
text or leaves them ids, and knows how many tokens the server counts on top (`overhead`).
"""

from penstock_lab.bench.prompts.choose import make
from penstock_lab.bench.prompts.maker import PromptMaker
from penstock_lab.bench.prompts.server import Fetch, Reply, Served

__all__ = ["Fetch", "PromptMaker", "Reply", "Served", "make"]
