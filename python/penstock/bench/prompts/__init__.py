"""Prompts of an exact number of tokens, for any server.

A *lexicon* holds words that are one token each (`local`: a tokenizer's file; `served`: the server's
/tokenize; `usage`: the server's counts for one-token requests). A *maker* turns their ids into text
or leaves them ids, and knows how many tokens the server counts on top (`overhead`).
"""

from penstock.bench.prompts.choose import make
from penstock.bench.prompts.maker import PromptMaker
from penstock.bench.prompts.server import Fetch, Reply, Served

__all__ = ["Fetch", "PromptMaker", "Reply", "Served", "make"]
