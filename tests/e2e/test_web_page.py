"""The page at `/`, used in Chromium as a person would: docs/page.md."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.browser import MISSING, Browser
from tests.e2e.conftest import Serve
from tests.e2e.gateway import Gateway
from tests.e2e.server import Server
from tests.e2e.sim import Sim
from tests.e2e.speaker import Speaker

HTML = {"accept": "text/html,application/xhtml+xml"}
KEY = "s3cret-of-the-page"
WIDTHS = (360, 1440)
HOSTILE = "<img src=x onerror=window.ran=1>"
LOAD = "[aria-busy=true]"
ANSWER = ".message.assistant"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if MISSING:
        pytest.skip(f"no browser: {MISSING} missing (apt-get install chromium chromium-driver)")
    with Browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def chat(serve: Serve) -> Iterator[Server]:
    with serve("--served-model-name", "smollm2", "--served-model-name", "alias") as started:
        yield started


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """One with a key, before two replicas."""
    sim = Sim("--served-model-name", "llama", replicas=2)
    with sim, Gateway("--api-key", KEY, *(f"--backend={url}" for url in sim.urls)) as started:
        yield started


@pytest.fixture
def desk(browser: Browser) -> Iterator[Browser]:
    """The browser with a wide window; at the end nothing may have gone wrong in it."""
    browser.resize(1440, 900)
    browser.prefer("light")
    browser.errors()
    yield browser
    assert browser.errors() == []


def idle(browser: Browser, answers: int) -> None:
    """Wait until so many answers are there and none grows."""
    browser.wait(lambda: browser.count(ANSWER) >= answers and browser.count(LOAD) == 0, "an answer")


def say(browser: Browser, text: str, answers: int) -> None:
    browser.fill(".composer textarea", text)
    browser.type("Enter")
    idle(browser, answers)


def test_programs_get_text_and_browsers_the_page(chat: Server) -> None:
    with chat.client() as client:
        text = client.get("/")
        assert text.headers["content-type"].startswith("text/plain")
        assert "smollm2" in text.text
        assert "accept" in text.headers["vary"]
        page = client.get("/", headers=HTML)
        assert page.headers["content-type"].startswith("text/html")
        assert "smollm2" not in page.text
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        again = client.get("/", headers={**HTML, "if-none-match": page.headers["etag"]})
        assert again.status_code == 304
        for path in ("/favicon.ico", "/favicon.svg"):
            assert client.get(path).headers["content-type"] == "image/svg+xml"
        assert client.get("/page/none.js").status_code == 404
    assert not [line for line in chat.log if "favicon" in line]


def test_a_gateway_serves_it_without_the_key_and_nothing_else(gateway: Gateway) -> None:
    with gateway.client() as client:
        assert client.get("/").status_code == 401
        page = client.get("/", headers=HTML)
        assert page.status_code == 200
        assert "llama" not in page.text
        assert client.get("/page/main.js").status_code == 200
        assert client.get("/favicon.ico").status_code == 200
        for path in ("/v1/models", "/page", "/page/../v1/models", "/%70age/main.js"):
            assert client.get(path, headers=HTML).status_code == 401, path


def test_it_can_be_left_out_and_served_below_a_path() -> None:
    with Sim(replicas=1) as sim:
        with Gateway("--no-ui", f"--backend={sim.url}") as gateway, gateway.client() as client:
            assert client.get("/", headers=HTML).headers["content-type"].startswith("text/plain")
            assert client.get("/page/main.js").status_code == 404
            assert client.get("/favicon.ico").status_code == 200
        below = Gateway("--root-path", "/team/llm", f"--backend={sim.url}")
        with below as gateway, gateway.client() as client:
            page = client.get("/team/llm", headers=HTML)
            assert 'src="llm/page/main.js"' in page.text
            assert client.get("/team/llm/page/main.js").status_code == 200


def test_chat(desk: Browser, chat: Server) -> None:
    desk.open(chat.url)
    desk.press("Settings")
    desk.fill("[name=temperature]", "0")
    desk.fill("[name=max_tokens]", "12")
    desk.click("[name=logprobs]")
    say(desk, "Name a river.", 1)
    first = desk.text(f"{ANSWER} .body")
    facts = desk.text(".facts")
    assert first
    assert "12 tokens" in facts
    assert "tokens/s" in facts
    assert "cached" in facts
    desk.press("Probabilities")
    assert desk.count(".token") == 12
    desk.run("document.querySelector('.token').focus()")
    desk.type("Right")
    assert "%" in desk.text(".about")
    desk.press("Probabilities")

    desk.press("Continue")
    idle(desk, 1)
    longer = desk.text(f"{ANSWER} .body")
    assert longer.startswith(first[:10])
    assert len(longer) > len(first)

    desk.press("Try again")
    idle(desk, 1)
    assert desk.text(".branch") == "2 / 2"
    assert desk.text(f"{ANSWER} .body") == first, "temperature 0"
    desk.press("Previous branch")
    assert desk.text(f"{ANSWER} .body") == longer

    desk.run("document.querySelector('.message.user [aria-label=Edit]').focus()")
    desk.type("Enter")
    desk.fill(".edit textarea", "Name a mountain.")
    desk.press("Send again")
    idle(desk, 1)
    assert desk.text(".message.user .plain") == "Name a mountain."
    assert desk.text(".message.user .branch") == "2 / 2"

    desk.reload()
    desk.find(ANSWER)
    assert desk.text(".message.user .plain") == "Name a mountain."
    desk.press("New chat")
    assert desk.count(ANSWER) == 0
    assert "Name a river." in desk.text(".conversations")


def test_an_answer_stops(desk: Browser, chat: Server) -> None:
    desk.open(chat.url)
    desk.press("New chat")
    desk.press("Settings")
    desk.fill("[name=max_tokens]", "4000")
    desk.fill("[name=system]", "Write on and on.")
    desk.fill(".composer textarea", "Tell a story without an end.")
    desk.press("Send")
    desk.wait(lambda: desk.text(f"{ANSWER} .body"), "the first words")
    desk.press("Stop")
    idle(desk, 1)
    assert "stopped" in desk.text(".facts")
    with chat.client() as client:
        desk.wait(
            lambda: (
                "num_requests_running" in client.get("/metrics").text
                and 'running{model_name="smollm2",engine="0"} 0' in client.get("/metrics").text
            ),
            "no request at the engine",
        )


def test_two_models_side_by_side(desk: Browser, chat: Server) -> None:
    desk.open(chat.url)
    desk.press("New chat")
    desk.press("Compare two models or settings")
    select = "[aria-label='Model of answer b']"
    desk.run(
        "const one = document.querySelector(arguments[0]); one.value = 'alias';"
        "one.dispatchEvent(new Event('change'))",
        select,
    )
    desk.press("Settings")
    for at in (1, 2):
        desk.fill(f".settings:nth-of-type({at}) [name=max_tokens]", "8")
    say(desk, "Name a river.", 2)
    authors = desk.run("return [...document.querySelectorAll('.author')].map(x => x.innerText)")
    assert authors == ["smollm2", "alias"]
    desk.press("One lane")
    assert desk.count(ANSWER) == 1


def test_live_and_api(desk: Browser, chat: Server) -> None:
    desk.open(f"{chat.url}/#live")
    with chat.client() as client:
        body = {"prompt": "a b c", "max_tokens": 8}
        desk.wait(lambda: desk.count(".chart") == 10, "the charts")
        assert client.post("/v1/completions", json=body).status_code == 200
        drawn = "return [...document.querySelectorAll('.chart')].filter(x => /[1-9]/.test("
        drawn += "x.querySelector('b').innerText)).map(x => x.innerText.split('\\n')[0])"
        desk.wait(lambda: "Time to first token (ms)" in desk.run(drawn), "a latency")
    desk.press("API")
    assert desk.count(".operation .method") > 25
    desk.fill(".find input", "rerank")
    desk.click(".operation:not([hidden]) summary")
    for language, words in (
        ("curl", "curl 'http://"),
        ("Python", "requests.post("),
        ("JavaScript", "await fetch("),
    ):
        desk.press(language)
        text = desk.text(".operation[open] pre")
        assert words in text
        assert "/v1/rerank" in text
        assert "smollm2" in text
    assert "documents (required)" in desk.text(".fields")


def test_the_key_is_asked_for_and_kept_nowhere(desk: Browser, gateway: Gateway) -> None:
    desk.open(gateway.url)
    desk.find(".key input")
    assert "llama" not in desk.text()
    desk.fill(".key input", "wrong")
    desk.type("Enter")
    desk.wait(lambda: "API key" in desk.text(".key .error"), "the reason")
    desk.fill(".key input", KEY)
    desk.type("Enter")
    desk.find(".composer")
    say(desk, "Hello", 1)
    kept = desk.run(
        "return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie,"
        " location.href, document.documentElement.outerHTML])"
    )
    assert KEY not in kept
    stored = [file for file in desk.folder.rglob("*") if file.is_file()]
    assert not [file for file in stored if KEY.encode() in file.read_bytes()]
    desk.press("Live")
    desk.wait(lambda: desk.count(".chart") == 7, "the gateway's charts")
    desk.press("API")
    assert "/v1/chat/completions" in desk.text("main > .reference")
    desk.reload()
    desk.find(".key input")


REPLICA: dict[str, Any] = {
    "name": "7f3a90c1",
    "address": "10.0.0.1:8000",
    "models": [HOSTILE],
    "condition": "ejected",
    "takes_requests": False,
    "reason": f"its breaker is open {HOSTILE}",
    "breaker": "open",
    "in_flight": 0,
    "picks": 3,
    "errors": 2,
    "restarts": 1,
    "load": {"source": "none", "age_s": None, "running": 0, "waiting": 0, "kv_use": 0.5},
    "pace": None,
    "output_tokens_per_s": 2.5,
    "last_error": {"time": 1.5, "message": f"answered 503\u202e {HOSTILE}"},
}
REPLICAS = {
    "pools": [{"name": HOSTILE, "saturated": True, "queued": 2, "replicas": [REPLICA]}],
    "picks": [{"time": 1.5, "decision": f"10.0.0.1:8000: least work {HOSTILE} of 3"}],
}
METRICS = f'penstock:gateway_requests_open{{version="{HOSTILE}"}} 1\n'
DOCUMENT = {
    "openapi": "3.1.0",
    "paths": {f"/{HOSTILE}": {"get": {"summary": HOSTILE, "responses": {HOSTILE: {}}}}},
    "components": {"schemas": {HOSTILE: {"type": "object"}}},
}
OUTPUTS = (
    HOSTILE,
    "<script>window.ran = 1</script>\n\n<svg onload=window.ran=1>",
    "[a](javascript:window.ran=1) [b](data:text/html,<script>1</script>) <javascript:window.ran=1>",
    "![c](javascript:window.ran=1) ![d](http://127.0.0.1:1/x.png)",
    f"```{HOSTILE}\n</code></pre>{HOSTILE}\n```",
    f"| {HOSTILE} |\n| --- |\n| [x](  java\tscript:window.ran=1) |",
    "`\u202egnp.exe` \u0000\u0007\u001b[31m \u2066 text",
)


def test_hostile_names_and_outputs_run_nothing(desk: Browser, gateway: Gateway) -> None:
    call = {"index": 0, "id": HOSTILE, "function": {"name": HOSTILE, "arguments": HOSTILE}}
    deltas: list[dict[str, Any]] = [{"content": f"{text}\n\n"} for text in OUTPUTS]
    deltas += [{"reasoning_content": HOSTILE}, {"tool_calls": [call]}]
    texts = {
        "/replicas": json.dumps(REPLICAS),
        "/metrics": METRICS,
        "/openapi.json": json.dumps(DOCUMENT),
    }
    names = [HOSTILE, "\u202eeman"]
    with Speaker(gateway.url, names, deltas=deltas, texts=texts) as speaker:
        desk.open(speaker.url)
        say(desk, HOSTILE, 1)
        assert speaker.asked[0]["model"] == HOSTILE
        desk.press("Live")
        desk.find(".badge")
        words = desk.text("main > .page")
        for shown in ("ejected", "its breaker is open", "2 queued", "least work", "\\u202e"):
            assert shown in words, shown
        desk.press("API")
        desk.click(".operation")
        desk.press("Chat")
        desk.press("Edit")
        desk.press("Cancel")
        desk.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        hrefs = desk.run("return [...document.querySelectorAll('main [href]')].map(x => x.href)")
        allowed = (speaker.url, "http://127.0.0.1:1/")
        assert [href for href in hrefs if not href.startswith(allowed)] == []
        assert desk.count("main img, main script, main iframe, main [onerror], main [onload]") == 0
        assert desk.run("return window.ran ?? null") is None
        assert "\\u202eeman" in desk.text("select")
        assert HOSTILE in desk.text(f"{ANSWER} .body")


def test_tools_and_thinking(desk: Browser, gateway: Gateway) -> None:
    call = {
        "index": 0,
        "id": "c1",
        "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
    }
    deltas: list[dict[str, Any]] = [{"reasoning_content": "It asks for *weather*."}]
    with Speaker(gateway.url, ["m"], deltas=[*deltas, {"tool_calls": [call]}]) as speaker:
        desk.open(speaker.url)
        desk.press("New chat")
        desk.press("Settings")
        desk.fill("[name=tools]", '{"name": "weather"}')
        say(desk, "Weather in Oslo?", 1)
        tools = speaker.asked[0]["tools"]
        assert tools == [{"type": "function", "function": {"name": "weather"}}]
        assert desk.run("return document.querySelector('.thinking').open") is False
        assert "call of weather" in desk.text(".call")
        assert "Oslo" in desk.text(".call")
        speaker.deltas = [{"content": "It is **cold**."}]
        desk.fill("[aria-label='Result of weather']", "-3")
        desk.press("Return to the model")
        idle(desk, 2)
        turns = speaker.asked[1]["messages"]
        assert [turn["role"] for turn in turns] == ["user", "assistant", "tool"]
        assert turns[2] == {"role": "tool", "tool_call_id": "c1", "content": "-3"}
        shown = "return [...document.querySelectorAll('.message strong')].map(x => x.innerText)"
        assert desk.run(shown) == ["cold"]


def test_settings_that_are_wrong_are_named(desk: Browser, gateway: Gateway) -> None:
    with Speaker(gateway.url, ["m"]) as speaker:
        desk.open(speaker.url)
        desk.press("Settings")
        desk.fill("[name=tools]", "{")
        say(desk, "Hello", 1)
        assert "Tools is not JSON" in desk.text(f"{ANSWER} .error")
        assert speaker.asked == []


def test_it_works_by_keyboard(desk: Browser, gateway: Gateway) -> None:
    with Speaker(gateway.url, ["m"], deltas=[{"content": "Yes."}]) as speaker:
        desk.open(speaker.url)
        desk.find(".composer textarea")
        desk.run("document.activeElement.blur()")
        passed = []
        for _ in range(40):
            desk.type("Tab")
            passed.append(desk.focused())
            if passed[-1] == "Message":
                break
        assert passed[0] == "Skip to content"
        for name in ("Chat", "Live", "New chat", "Model", "Export", "Settings", "Message"):
            assert name in passed, passed
        desk.type("Hello")
        desk.type("Enter")
        idle(desk, 1)
        assert speaker.asked[0]["messages"] == [{"role": "user", "content": "Hello"}]


def audit(browser: Browser) -> list[str]:
    """What axe-core finds wrong in the page as it is."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or not found.submodule_search_locations:
        pytest.skip("axe-core is not installed: make test-tools")
    axe = Path(found.submodule_search_locations[0]) / "axe.min.js"
    browser.run(axe.read_text())
    script = (
        "return axe.run(document, {resultTypes: ['violations']}).then(({violations}) =>"
        " violations.flatMap(({id, nodes}) => nodes.map((one) => `${id}: ${one.html}`)))"
    )
    return list(browser.run(script))


RICH = "# Title\n\nText with `code`, *this* and [a link](https://a.example).\n\n- one\n- two\n\n"
RICH += "```python\nprint(1)\n```\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\n> said"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_bars_the_way(browser: Browser, gateway: Gateway, width: int, scheme: str) -> None:
    document = httpx.get(f"{gateway.url}/page/main.js").status_code
    assert document == 200
    plain = {**REPLICA, "models": ["m"], "reason": "its breaker is open", "last_error": None}
    pool = {"name": "default", "saturated": False, "queued": 0, "replicas": [plain]}
    picks = [{"time": 1.5, "decision": "10.0.0.1:8000: least work"}]
    texts = {
        "/replicas": json.dumps({"pools": [pool], "picks": picks}),
        "/metrics": METRICS,
        "/openapi.json": json.dumps(OPENAPI),
    }
    deltas = [{"reasoning_content": "Hm."}, {"content": RICH}]
    # The audit's own script is not the page's.
    browser.chrome("Page.setBypassCSP", enabled=True)
    browser.resize(width, 800)
    browser.prefer(scheme)
    try:
        with Speaker(gateway.url, ["m", "other"], deltas=deltas, texts=texts) as speaker:
            browser.open(speaker.url)
            say(browser, "Hello", 1)
            found = audit(browser)
            browser.press("Settings")
            found += audit(browser)
            browser.press("Live")
            browser.find(".badge")
            found += audit(browser)
            browser.press("API")
            browser.click(".operation")
            found += audit(browser)
            assert found == []
            wide = browser.run("return document.documentElement.scrollWidth")
            assert wide <= width
    finally:
        browser.chrome("Page.setBypassCSP", enabled=False)


OPENAPI = {
    "openapi": "3.1.0",
    "paths": {
        "/v1/embeddings": {
            "post": {
                "summary": "A vector of each input",
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": "#/c/s/Request"}}}
                },
                "responses": {"200": {"content": {}}, "401": {}},
            }
        }
    },
    "components": {
        "schemas": {
            "Request": {
                "type": "object",
                "required": ["input"],
                "properties": {"model": {"type": "string"}, "input": {"type": "string"}},
            }
        }
    },
}
"""A document with one endpoint."""
