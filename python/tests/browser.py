"""Chromium without a window, driven by its DevTools protocol over two pipes."""

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu")
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}


def program() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def _pipe() -> tuple[int, int]:
    """Both ends above 9: the browser reads from 3 and writes to 4."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high


class Browser:
    def __init__(self, path: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read, self._to = _pipe()
        self._from, write = _pipe()

        def connect() -> None:
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._process = subprocess.Popen(
            [path, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            preexec_fn=connect,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self.events: list[dict] = []
        (target,) = (
            target["targetId"]
            for target in self.call("Target.getTargets")["targetInfos"]
            if target["type"] == "page"
        )
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def call(self, method: str, **parameters) -> dict:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict:
        while b"\0" not in self._rest:
            part = os.read(self._from, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def value(self, expression: str):
        """Of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, file: Path, width: int, height: int, address: str = "") -> None:
        """A page that sets data-ready of its body when it is."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"file://{file}{address}")
        end = time.monotonic() + 60
        while not self.value("document.body && document.body.dataset.ready"):
            assert time.monotonic() < end, "the page is not ready"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """In the middle of an element, where a person would."""
        box = self.value(
            f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{block: "center"}}); const box = e.getClientRects()[0];
            return [box.left + box.width / 2, box.top + box.height / 2]; }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box[0],
                y=box[1],
                button="left",
                clickCount=1,
            )

    def press(self, key: str) -> None:
        code = KEYS.get(key, 0)
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def picture(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])
