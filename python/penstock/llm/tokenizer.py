"""The tokenizer, with the interface of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core import InvalidValueError, PenstockError
from penstock.llm.arguments import checked
from penstock.llm.prompts import ChatOptions, Message, encoded, read_conversation
from penstock.model import TokenFacts

if TYPE_CHECKING:
    from penstock import _native


class Tokenizer:
    """Text and token ids of one model: a subset of the methods of transformers' tokenizers."""

    def __init__(self, native: _native.Tokenizer, tokens: TokenFacts) -> None:
        self._native = native
        self.vocab_size = native.vocab_size
        self.bos_token_id = tokens.bos
        self.eos_token_id = tokens.eos

    def __len__(self) -> int:
        return self.vocab_size

    @checked
    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = self.encode(text, add_special_tokens)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    @checked
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return encoded(text, self._native, add_special_tokens)

    @checked
    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        try:
            return self._native.decode(ids, skip_special_tokens)
        except OverflowError as error:
            raise InvalidValueError("token_ids", token_ids, "token ids") from error

    @checked
    def apply_chat_template(
        self,
        conversation: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **kwargs: Any,
    ) -> str | list[int]:
        """The token ids of a conversation rendered with the model's chat template (or
        `chat_template`). If `tokenize` is False, the rendered text.
        """
        native = self._native
        if chat_template is not None:
            native = native.with_chat_template(chat_template)
        options = ChatOptions(add_generation_prompt, continue_final_message, tools, kwargs)
        read = read_conversation(conversation, options, native)
        assert read.text is not None
        return read.ids if tokenize else read.text


def open_tokenizer(path: str, chat_template: str | None) -> _native.Tokenizer:
    """Open the tokenizer at `path`. `chat_template`: a file with a template, or its text. Raises
    PenstockError.
    """
    from penstock import _native

    file = chat_template if chat_template and Path(chat_template).is_file() else None
    try:
        opened = _native.Tokenizer(path, file)
        if chat_template and file is None:
            opened = opened.with_chat_template(chat_template)
    except (OSError, ValueError) as error:
        raise PenstockError(str(error)) from error
    return opened
