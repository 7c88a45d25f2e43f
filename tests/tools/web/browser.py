"""A headless Chromium, driven over its debugging pipe: no package and no port is needed for that.

Commands and answers are JSON, each ended by a NUL, on the descriptors 3 and 4 of the browser. Nothing here waits for a
time: what is waited for is an expression in the page that becomes true.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell", "chromium-headless-shell")
AXE_FOLDERS = ("node_modules", "/usr/lib/node_modules", "/usr/local/lib/node_modules", "/usr/share/nodejs")
WAIT_MS = 60_000  # A limit for what never comes; a busy machine does not reach it.


def find_chromium() -> str | None:
    """Return the path of a Chromium; None if there is none."""
    given = os.environ.get("PERSIST_TEST_CHROMIUM")
    return given or next((path for name in NAMES if (path := shutil.which(name))), None)


def find_axe() -> Path | None:
    """Return the script of axe-core, which examines a page for what shuts people out; None if there is none."""
    given = os.environ.get("PERSIST_TEST_AXE")
    places = [Path(folder) / "axe-core" / "axe.min.js" for folder in AXE_FOLDERS]
    return Path(given) if given else next((path for path in places if path.is_file()), None)


# Puts the two ends of the pipes where the browser wants them, and becomes the browser.
_START = """if True:
    import fcntl, os, sys
    ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
    for end, wanted in zip(ends, (3, 4)):
        os.dup2(end, wanted)
    os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One page of the browser."""

    def __init__(self, to: int, from_: int) -> None:
        self._to = os.fdopen(to, "wb", buffering=0)
        self._from = os.fdopen(from_, "rb")
        self._buffer = b""
        self._next = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command; return its result."""
        self._next += 1
        message = {"id": self._next, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._next:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._from.fileno(), 1 << 16)
            assert data, "the browser has gone"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(told["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.problems.append(told["entry"]["text"])

    def look(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Make the window of a size, and light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Go to an address; return when the page has shown what it asked for."""
        self.call("Page.navigate", url=url)
        self.wait("document.body && document.body.dataset.view && document.body.dataset.busy === 'no'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page; of a promise, what it comes to."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Return when an expression is true in the page."""
        done = self.evaluate(
            f"""new Promise((resolve) => {{
                const began = performance.now();
                const look = () => {{
                    let found = false;
                    try {{ found = !!({expression}); }} catch (error) {{ found = false; }}
                    if (found || performance.now() - began > {WAIT_MS}) resolve(found);
                    else setTimeout(look, 10);
                }};
                look();
            }})"""
        )
        assert done, f"this did not become true: {expression}\n{self.evaluate('document.body.innerText')}"

    def settle(self) -> None:
        """Return when the page asks for nothing any more."""
        self.wait("document.body.dataset.busy === 'no'")

    def text(self, selector: str) -> str:
        """Return what an element shows."""
        found: str = self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def click(self, selector: str) -> None:
        """Click an element, and wait for what it asks for."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")
        self.settle()

    def fill(self, selector: str, text: str) -> None:
        """Type into a field, as a whole."""
        self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(text)}; "
            "e.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )

    def press(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        codes = {"ArrowLeft": 37, "ArrowRight": 39, "Escape": 27, "Tab": 9, "Enter": 13}
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """Let go of the pipe."""
        self._to.close()
        self._from.close()


@contextmanager
def browser(chromium: str, profile: Path) -> Iterator[Page]:
    """Start a browser with a profile of its own; yield its page."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    flags = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
        "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--hide-scrollbars", f"--user-data-dir={profile}",
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(to_read), str(from_write), chromium, *flags],
        pass_fds=(to_read, from_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    page = None
    try:
        page = Page(to_write, from_read)
        yield page
    finally:
        if page is not None:
            page.close()
        process.terminate()
        process.wait()
