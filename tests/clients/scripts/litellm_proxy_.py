"""litellm's proxy in front of the server, asked by the clients of both protocols."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from check import BASE_URL, MODEL, QUESTION, feature
from openai import OpenAI

CONFIG = f"""
model_list:
  - model_name: proxied
    litellm_params: {{model: hosted_vllm/{MODEL}, api_base: "{BASE_URL}", api_key: none}}
"""
MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
        },
    },
}

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
url = f"http://127.0.0.1:{port}"
directory = tempfile.TemporaryDirectory()
config = Path(directory.name, "config.yaml")
config.write_text(CONFIG)
log = Path(directory.name, "log")
with log.open("w") as output:
    proxy = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("litellm")),
            *("--config", str(config), "--port", str(port), "--host", "127.0.0.1"),
        ],
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": "sk-1"},
        stdout=output,
        stderr=output,
    )


def wait_ready() -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and proxy.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health/liveliness", timeout=5).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise RuntimeError(log.read_text()[-2000:])


try:
    wait_ready()
    client = OpenAI(base_url=f"{url}/v1", api_key="sk-1", max_retries=0)

    @feature("chat")
    def _() -> None:
        answer = client.chat.completions.create(model="proxied", messages=MESSAGES, max_tokens=20)
        assert answer.choices[0].message.content
        assert answer.usage.completion_tokens <= 20

    @feature("stream with usage")
    def _() -> None:
        stream = client.chat.completions.create(
            model="proxied",
            messages=MESSAGES,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert any(chunk.usage for chunk in chunks)

    @feature("tools: required")
    def _() -> None:
        answer = client.chat.completions.create(
            model="proxied",
            messages=MESSAGES,
            tools=[TOOL],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=100,
        )
        call = answer.choices[0].message.tool_calls[0].function
        assert isinstance(json.loads(call.arguments)["city"], str)

    @feature("responses")
    def _() -> None:
        answer = client.responses.create(model="proxied", input=QUESTION, max_output_tokens=20)
        assert answer.output_text

    @feature("anthropic messages")
    def _() -> None:
        body = {"model": "proxied", "max_tokens": 20, "messages": MESSAGES}
        headers = {"content-type": "application/json", "x-api-key": "sk-1"}
        request = urllib.request.Request(f"{url}/v1/messages", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["content"][0]["text"]
finally:
    proxy.terminate()
    proxy.wait(30)
