"""instructor, in all its modes."""

import instructor
from check import BASE_URL, MODEL, QUESTION, feature
from openai import OpenAI
from pydantic import BaseModel


class Capital(BaseModel):
    city: str
    country: str


MESSAGES = [{"role": "user", "content": QUESTION}]

for name in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"):

    @feature(f"mode {name}")
    def _(name: str = name) -> None:
        raw = OpenAI(base_url=BASE_URL, api_key="none")
        client = instructor.from_openai(raw, mode=getattr(instructor.Mode, name))
        limit = "max_output_tokens" if name.startswith("RESPONSES") else "max_tokens"
        found = client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            response_model=Capital,
            max_retries=0,
            temperature=0,
            **{limit: 200},
        )
        assert isinstance(found, Capital)
