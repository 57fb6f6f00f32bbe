"""Chromium without a screen, driven by WebDriver (https://www.w3.org/TR/webdriver2/)."""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from tests.e2e.server import eventually
from tests.limits import HANG

T = TypeVar("T")

PROGRAMS = ("chromium", "chromedriver")
MISSING = ", ".join(program for program in PROGRAMS if shutil.which(program) is None)
"""Programs without which no browser runs."""
ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-extensions", "--mute-audio"),
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The member that holds the id of an element, by the standard."""
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004", "Left": "\ue012", "Right": "\ue014"}
SHIFT = "\ue008"


class Browser:
    """One window. `errors` is what its console has reported as errors, policy violations included;
    network errors such as a 401 are left out, because the browser reports them whoever handles
    them.
    """

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder = folder
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG)
        self.session = ""

    def __enter__(self) -> Self:
        eventually(self._is_ready, "a ready chromedriver")
        options = {
            "args": [*ARGUMENTS, f"--user-data-dir={self.folder}"],
            "binary": shutil.which("chromium"),
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        body = {"capabilities": {"alwaysMatch": wanted}}
        found = self.http.post("/session", json=body).json()["value"]
        self.session = found["sessionId"]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.session:
            self.http.delete(f"/session/{self.session}")
        self.http.close()
        self.driver.terminate()
        self.driver.wait(HANG)

    def _is_ready(self) -> bool:
        try:
            return bool(self.http.get("/status").json()["value"]["ready"])
        except httpx.TransportError:
            return False

    def _call(self, path: str, **body: object) -> Any:
        answer = self.http.post(f"/session/{self.session}/{path}", json=body).json()["value"]
        assert not (isinstance(answer, dict) and "error" in answer), answer["message"]
        return answer

    def open(self, url: str) -> None:
        self._call("url", url=url)

    def reload(self) -> None:
        self._call("refresh")

    def run(self, script: str, *arguments: object) -> Any:
        """What the body of a function returns in the page."""
        return self._call("execute/sync", script=script, args=list(arguments))

    def chrome(self, command: str, **parameters: object) -> Any:
        """A command of the DevTools protocol."""
        return self._call("goog/cdp/execute", cmd=command, params=parameters)

    def resize(self, width: int, height: int) -> None:
        self.chrome(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """`scheme`: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.chrome("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, file: Path) -> None:
        answer = self.http.get(f"/session/{self.session}/screenshot").json()["value"]
        file.write_bytes(base64.b64decode(answer))

    def errors(self) -> list[str]:
        logged = self._call("se/log", type="browser")
        return [
            entry["message"]
            for entry in logged
            if entry["level"] == "SEVERE" and entry["source"] != "network"
        ]

    def wait(self, probe: Callable[[], T | None], what: str) -> T:
        """The first true answer of `probe`, looked for as seldom as a person would."""
        deadline = time.monotonic() + HANG
        while time.monotonic() < deadline:
            found = probe()
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"{what}: not within {HANG:.0f} s; the page shows {self.text()!r}")

    def text(self, selector: str = "body") -> str:
        """The visible text of the first element; empty if there is none."""
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return str(self.run(script, selector))

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def find(self, selector: str) -> dict[str, str]:
        """The first visible element, once there is one."""
        script = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".find((one) => one.checkVisibility()) ?? null"
        )
        return self.wait(lambda: self.run(script, selector), f"an element {selector}")

    def click(self, selector: str) -> None:
        self._call(f"element/{self.find(selector)[ELEMENT]}/click")

    def press(self, name: str) -> None:
        """Press the button with this name."""
        script = (
            "return [...document.querySelectorAll('button, summary, a')].filter((one) =>"
            " one.checkVisibility() && (one.getAttribute('aria-label') ?? one.innerText.trim())"
            " === arguments[0]).at(-1) ?? null"
        )
        found = self.wait(lambda: self.run(script, name), f"a button {name!r}")
        self._call(f"element/{found[ELEMENT]}/click")

    def fill(self, selector: str, text: str) -> None:
        """Put a text in the place of what a field has."""
        element = self.find(selector)[ELEMENT]
        self._call(f"element/{element}/clear")
        self._call(f"element/{element}/value", text=text)

    def type(self, text: str) -> None:
        """Keys for what is in focus; names of KEYS count as one key."""
        keys = [KEYS[text]] if text in KEYS else list(text)
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def focused(self) -> str:
        """The name of what is in focus."""
        script = (
            "const one = document.activeElement;"
            "return one.getAttribute('aria-label') ?? one.innerText.trim()"
        )
        return str(self.run(script))
