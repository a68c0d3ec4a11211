"""The picture of ``voxax view``: ``python docs/screenshot.py`` writes it, from headless Chromium.

Needs the extras demo and view, and Chromium on the path. What it shows is a simulated street.
"""

import base64
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

PICTURE = Path(__file__).resolve().parent / "images" / "view.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# WebGL is computed on the CPU; nothing is asked of other machines.
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--remote-debugging-port=0",
)  # fmt: skip
# What the page says of computing WebGL on the CPU.
DISMISS = "document.querySelectorAll('[class*=Notification-closeButton]').forEach(b => b.click())"
START, DRAW = 60.0, 120.0  # seconds to wait at most


def browser() -> str | None:
    """Path of a browser, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


class Page:
    """A page in a browser of its own, spoken to by the DevTools protocol."""

    def __init__(self, url: str, width: int = 1100, height: int = 640) -> None:
        from websockets.sync.client import connect

        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        size = f"--window-size={width},{height}"
        self._process = subprocess.Popen(
            [browser(), *OPTIONS, size, f"--user-data-dir={self._folder.name}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._socket, self._number = None, 0
        try:
            port = _until(self._port, START, "Chromium did not start")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [page for page in json.load(answer) if page["type"] == "page"]
            address = pages[0]["webSocketDebuggerUrl"]
            self._socket = connect(address, max_size=None, proxy=None)
            self.call("Page.enable")
            self.call("Page.navigate", url=url)
        except BaseException:
            self.close()
            raise

    def _port(self) -> str | None:
        path = Path(self._folder.name, "DevToolsActivePort")
        lines = path.read_text().split() if path.exists() else []
        return lines[0] if len(lines) == 2 else None

    def call(self, method: str, **parameters):
        """The answer to a command of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=START))
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(answer["error"]["message"])
                return answer["result"]

    def words(self) -> str:
        """The text of the page."""
        found = self.call("Runtime.evaluate", expression="document.body?.innerText ?? ''")
        return found["result"]["value"]

    def picture(self) -> bytes:
        """A PNG of the page."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def pixels(self) -> np.ndarray:
        """uint8 [height, width, 3] of the page."""
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(self.picture())).convert("RGB"))

    def wait(self, holds, what: str):
        """Wait until ``holds(page)`` is true, and return it."""
        return _until(lambda: holds(self), DRAW, what)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        # The browser's helpers are in its process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def _until(found, seconds: float, what: str):
    end = time.monotonic() + seconds
    while True:
        value = found()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"{what} within {seconds:g} s")
        time.sleep(0.3)


def drawn(page: Page, color: tuple[int, int, int]) -> bool:
    """Return whether more than a few pixels have the color."""
    return int((np.abs(page.pixels().astype(int) - color).max(axis=2) < 12).sum()) > 30


def main() -> None:
    """Show a street by its labels."""
    from voxax.cli.view import colorings_of
    from voxax.io.simulator import CLASS_NAMES, simulate_sweep
    from voxax.plot.palette import class_colors, rgb
    from voxax.plot.viewer import Viewer

    street = simulate_sweep(12345)
    street = street.select(np.hypot(*street.positions[:, :2].T) < 30)
    colorings = colorings_of(street, None, CLASS_NAMES, voxel_size=0.2)
    viewer = Viewer(street.positions, colorings, "label", title="scan.ply")
    try:
        with Page(viewer.url) as page:
            page.wait(lambda p: "ground" in p.words(), "the legend did not appear")
            color = tuple(rgb(class_colors(CLASS_NAMES)[0]).astype(int))
            page.wait(lambda p: drawn(p, color), "the points did not appear")
            page.call("Runtime.evaluate", expression=DISMISS)
            time.sleep(2)
            PICTURE.write_bytes(page.picture())
    finally:
        viewer.stop()


if __name__ == "__main__":
    main()
