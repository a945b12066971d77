"""Tiny files in the published layouts, and a real HTTP server that can misbehave."""

import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gossamer.data.sources import File


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def cifar_bytes(labels: list[list[int]], seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return np.concatenate([np.array(labels, np.uint8), pixels], axis=1).tobytes()


def published(name: str, content: bytes, algorithm: str = "sha256") -> File:
    return File(name, len(content), f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}")


def tiny_idx_set(samples: int = 12, tests: int = 5) -> dict[str, bytes]:
    """Four gzipped IDX files by their published names."""
    rng = np.random.default_rng(7)
    plain = {
        "train-images-idx3-ubyte": rng.integers(0, 256, (samples, 28, 28)),
        "train-labels-idx1-ubyte": np.arange(samples) % 10,
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (tests, 28, 28)),
        "t10k-labels-idx1-ubyte": np.arange(tests) % 10,
    }
    return {f"{name}.gz": gzip.compress(idx_bytes(array), mtime=0) for name, array in plain.items()}


@dataclass
class Server:
    """What is served, how it misbehaves, and what was asked for."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    lengths: bool = True
    cut_after: int | None = None  # send so many bytes of an answer, then drop the connection
    cuts: int = 0  # how many answers are cut
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.requests.append((self.path, wanted))
            content = state.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and state.ranges else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            if state.lengths:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            body = content[start:]
            if state.cuts:
                state.cuts -= 1
                body = body[: state.cut_after]
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.address = f"http://127.0.0.1:{http.server_port}"
        yield state
        http.shutdown()
        thread.join()


@pytest.fixture
def unreachable() -> str:
    """An address where nobody answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as http:
        return f"http://127.0.0.1:{http.server_port}"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No proxy, mirror or data directory of whoever runs the tests."""
    for name in ("GOSSAMER_DATA", "GOSSAMER_MIRROR", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The makers above, for the test files, which cannot import from each other."""
    return SimpleNamespace(idx=idx_bytes, cifar=cifar_bytes, published=published, idx_set=tiny_idx_set)
