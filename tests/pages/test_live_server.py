"""Who is let in, what is served, and what `gossamer live` refuses."""

import asyncio
import json
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from gossamer.pages.live import guard, server
from gossamer.pages.live.folder import FolderSource
from gossamer.pages.live.guard import Guard
from gossamer.pages.live.server import ASSETS, Live
from made_runs import made_run

TOKEN, PASSWORD = "the-token", "the pässword"
PATHS = [f"/{name}" for name in ASSETS] + ["/events", "/favicon.ico", "/../secret", "/%2e%2e/secret"]


def asked(app: Any, path: str, method: str = "GET", **more: Any) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://live") as client:
            return await client.request(method, path, **more)

    return asyncio.run(ask())


@pytest.fixture
def live(tmp_path: Path) -> Live:
    made_run(tmp_path / "runs" / "one")
    (tmp_path / "secret").write_text("secret")
    return Live(FolderSource(tmp_path / "runs"))


def test_without_the_token_there_is_nothing_but_401(live: Live) -> None:
    app = Guard(live.app, token=TOKEN)
    wrong = ["", "/wrong", f"/{TOKEN[:-1]}", f"/{TOKEN}x", f"/{TOKEN.upper()}", f"//{TOKEN}", "/%ff"]
    for path in [f"{start}{path}" for start in wrong for path in PATHS] + [f"/{TOKEN}", f"/?token={TOKEN}"]:
        for method in ("GET", "POST", "HEAD"):
            answer = asked(app, path, method)
            assert answer.status_code == 401, path
            assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_with_the_token_there_is_the_page_and_nothing_else(live: Live) -> None:
    app = Guard(live.app, token=TOKEN)
    for name, (_, kind) in ASSETS.items():
        answer = asked(app, f"/{TOKEN}/{name}")
        assert answer.status_code == 200, name
        assert answer.headers["content-type"].startswith(kind)
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert "http:" not in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
    for name in ("secret", "../secret", "%2e%2e/secret", "scripts/../../secret", "scripts/report.js", "scripts/", "//"):
        assert asked(app, f"/{TOKEN}/{name}").status_code in (401, 404), name
    assert asked(app, f"/{TOKEN}/", "POST").status_code == 405


def test_the_page_loads_only_what_is_served() -> None:
    for name, (file, _) in ASSETS.items():
        for imported in re.findall(r'from "\./([^"]+)"', server.asset(file).decode()) if name.endswith(".js") else ():
            assert f"scripts/{imported}" in ASSETS
    page = server.asset("live.html").decode()
    assert all(f'"{name}"' in page for name in ASSETS if name.endswith(".css") or "uPlot" in name or "icon" in name)


def test_a_wrong_password_is_answered_slowly_and_401(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(guard.asyncio, "sleep", sleep)
    app = Guard(live.app, password=PASSWORD)
    for path in PATHS:
        answer = asked(app, path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic ")
    assert pauses == []
    assert asked(app, "/", auth=("", "wrong")).status_code == 401
    assert asked(app, "/", headers={"authorization": "Basic ###"}).status_code == 401
    assert pauses == [guard.SLOW]
    assert asked(app, "/", auth=("anybody", PASSWORD)).status_code == 200
    app._waiting["127.0.0.1"] = guard.WAITING  # a flood of guesses: none of them is looked at
    assert asked(app, "/", auth=("", PASSWORD)).status_code == 401


def test_two_hundred_tabs_share_one_reader(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    source = live.source
    assert isinstance(source, FolderSource)
    looks = 0
    look = source._watch.look

    def counted() -> dict[str, Any]:
        nonlocal looks
        looks += 1
        return look()

    monkeypatch.setattr(source._watch, "look", counted)
    monkeypatch.setattr(server, "AT_LEAST", 0.0)
    monkeypatch.setattr(FolderSource, "every", 0.01)

    async def watch() -> None:
        shown = next(name for name in source._watch.look() if name.startswith("group/")).removeprefix("group/")
        reader = asyncio.create_task(live.read())
        await asyncio.sleep(0.05)
        assert looks == 1  # nobody looks: the reader rests
        tabs = [live._stream(shown) for _ in range(200)]
        first = await asyncio.gather(*(anext(tab) for tab in tabs))
        second = await asyncio.gather(*(anext(tab) for tab in tabs))
        assert len({id(event) for event in first}) == 1  # encoded once
        assert json.loads(first[0].removeprefix(b"data: "))["set"]["about"]["groups"] == 1
        assert {event[:14] for event in second} == {b"event: shown\nd"}
        before = looks
        with (source._watch.root / "one" / "metrics.jsonl").open("a") as file:
            file.write('{"round": 13, "local_loss": 0.1}\n')
        fresh = await asyncio.gather(*(anext(tab) for tab in tabs))
        assert len(set(fresh)) == 1
        assert looks - before < 100  # far from one for each tab
        for tab in tabs:
            await tab.aclose()
        await asyncio.sleep(0.05)
        rest = looks
        await asyncio.sleep(0.05)
        assert looks == rest
        reader.cancel()

    asyncio.run(watch())


def test_more_tabs_than_that_are_told_so(live: Live) -> None:
    live._streams = server.STREAMS
    assert asked(live.app, "/events").status_code == 503


def test_what_live_refuses(refused: Callable[..., str], place: Path, tmp_path: Path) -> None:
    (place / "runs").mkdir()
    (place / "file").write_text("short\n")
    (place / "broken.pem").write_text("no certificate")
    (place / "kits" / "alice").mkdir(parents=True)
    (place / "kits" / "alice" / "key.pem").write_text("no key")
    refused("live", "nowhere", says=("nowhere: does not exist",))
    refused("live", "file", says=("file: is a file",))
    refused("live", "kits", says=("holds kits", "kits/alice"))
    refused("live", "kits/alice", says=("missing; copy the kit anew",))
    refused("live", "--host", "0.0.0.0", says=("--password-file",))
    refused("live", "--host", "no.such.host.invalid", "--password-file", "file", says=("at least 8",))
    refused("live", "--password-file", "missing", says=("cannot be read",))
    refused("live", "--certificate", "broken.pem", says=("needs its key",))
    refused("live", "--certificate", "broken.pem", "--key", "file", says=("not a PEM certificate",))
    refused("live", "--certificate", "missing", "--key", "missing", says=("No such file",))
    refused("live", "--host", "203.0.113.7", "--port", "0", *tls(tmp_path), says=("cannot listen on 203.0.113.7",))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused("live", "--port", port, says=(f"--port {port}: is in use",))


def tls(folder: Path) -> list[str]:
    """Options with a certificate that is good."""
    made = trustme.CA().issue_cert("localhost")
    made.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
    made.private_key_pem.write_to_path(folder / "key.pem")
    return ["--certificate", str(folder / "certificate.pem"), "--key", str(folder / "key.pem")]


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_the_extra_it_says_what_to_install(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in [name for name in sys.modules if name.startswith(("gossamer.pages.live", package))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    refused("live", says=("pip install 'gossamer[live]'",))
