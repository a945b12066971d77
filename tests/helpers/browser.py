"""A real Chromium without a window, driven over its debugging protocol."""

import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
HOW = "no Chromium here, so that no page is looked at: install it (Debian: apt-get install chromium)"
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=HOW)

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--remote-debugging-port=0", "--force-color-profile=srgb",
)  # fmt: skip


class Page:
    """One tab. What it asks of the network, and what it complains of, is kept."""

    def __init__(self, socket: Any, watch: bool = True) -> None:
        self._socket = socket
        self._number = 0
        #: Addresses of everything that the page asked for.
        self.requests: list[str] = []
        #: Errors and warnings of its console.
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network") if watch else ():
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            said = self._receive()
            if said.get("id") == self._number:
                if "error" in said:
                    raise RuntimeError(f"{method}: {said['error']}")
                return dict(said["result"])

    def _receive(self, seconds: float = 30) -> dict[str, Any]:
        said = json.loads(self._socket.recv(seconds))
        about = said.get("params", {})
        match said.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])
            case "Runtime.exceptionThrown":
                details = about["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.complaints.append(str([each.get("value") for each in about["args"]]))
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.complaints.append(about["entry"]["text"])
        return dict(said)

    def look(self, width: int, height: int = 900, *, dark: bool = False, print_: bool = False) -> None:
        """Set the width of the window, light or dark, screen or paper."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", media="print" if print_ else "", features=[scheme])

    def open(self, address: str) -> None:
        """Open an address, until it is loaded."""
        self("Page.navigate", url=address)
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def run(self, script: str) -> Any:
        """The value of an expression, awaited."""
        found = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", "failed"))
        return found["result"].get("value")

    def picture(self, path: Path) -> Path:
        """The whole page as a picture."""
        shot = self("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def window(self, path: Path) -> Path:
        """What is seen of the page without scrolling, as a picture."""
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot", format="png")["data"]))
        return path

    def pdf(self, path: Path) -> Path:
        """The page on paper."""
        made = self("Page.printToPDF", preferCSSPageSize=True, paperWidth=8.27, paperHeight=11.69)
        path.write_bytes(base64.b64decode(made["data"]))
        return path


@contextmanager
def chromium() -> Iterator[Page]:
    """A browser with one tab, ended with the block."""
    assert CHROMIUM is not None, HOW
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            line = next((line for line in process.stderr if "DevTools listening on" in line), "")
            assert line, "Chromium did not start"
            address = line.split()[-1]
            with connect(address, compression=None) as socket:
                targets = Page(socket, watch=False)("Target.getTargets")["targetInfos"]
            tab = next(each["targetId"] for each in targets if each["type"] == "page")
            own = f"{address.split('/devtools')[0]}/devtools/page/{tab}"
            with connect(own, max_size=None, open_timeout=20, compression=None) as socket:
                yield Page(socket)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
