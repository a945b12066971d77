"""Who may see the page: the holder of the address with its random token, or of the password. All others get 401."""

import asyncio
import base64
import binascii
import secrets
from collections import Counter
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from gossamer.errors import GossamerError

#: Bytes of a token.
TOKEN = 24
#: The shortest password.
SHORTEST = 8
#: Seconds between two answers to wrong passwords, whoever sends them.
SLOW = 0.5
#: Wrong passwords of one caller that wait for their answer; more are answered at once, without being looked at.
WAITING = 20

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(TOKEN)


class Guard:
    """Lets requests through to `app` that know the secret: the first part of the path, or a password."""

    def __init__(self, app: ASGIApp, *, token: str | None = None, password: str | None = None) -> None:
        assert (token is None) != (password is None)
        self._app = app
        self._token = None if token is None else token.encode()
        self._password = None if password is None else password.encode()
        self._turn = asyncio.Lock()
        self._waiting: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        rest = self._by_token(scope["path"]) if self._token is not None else await self._by_password(scope)
        if rest is None:
            await self._refuse(send)
            return
        if scope["method"] != "GET":
            await _say(send, 405, b"405: this page is only looked at\n")
            return
        await self._app(
            {**scope, "path": rest, "raw_path": rest.encode(), "root_path": ""}, receive, self._signed(send)
        )

    def _by_token(self, path: str) -> str | None:
        """The path behind the token; None without the right one."""
        assert self._token is not None
        first, slash, rest = path.removeprefix("/").partition("/")
        right = secrets.compare_digest(first.encode(errors="surrogateescape"), self._token)
        return f"/{rest}" if right and slash else None

    async def _by_password(self, scope: Scope) -> str | None:
        """The path; None without the right password."""
        assert self._password is not None
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, packed = given.partition(b" ")
        try:
            said = base64.b64decode(packed, validate=True).partition(b":")[2] if kind.lower() == b"basic" else b""
        except binascii.Error:
            said = b""
        caller = scope["client"][0] if scope.get("client") else ""
        if self._waiting[caller] >= WAITING:
            return None
        if secrets.compare_digest(said, self._password):
            return str(scope["path"])
        if said:
            self._waiting[caller] += 1
            try:
                async with self._turn:
                    await asyncio.sleep(SLOW)
            finally:
                self._waiting[caller] -= 1
        return None

    def _signed(self, send: Send) -> Send:
        async def signed(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *RAW_HEADERS]}  # type: ignore[misc]
            await send(message)

        return signed  # type: ignore[return-value]

    async def _refuse(self, send: Send) -> None:
        if self._password is None:
            await _say(send, 401, b"401: open the address that 'gossamer live' has printed\n")
        else:
            asks = (b"www-authenticate", b'Basic realm="gossamer live", charset="UTF-8"')
            await _say(send, 401, b"401: this page needs the password of 'gossamer live'\n", asks)


async def _say(send: Send, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *more, *RAW_HEADERS]})
    await send({"type": "http.response.body", "body": body})


def read_password(file: Path) -> str:
    """The first line of a file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise GossamerError(
            f"--password-file {file}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    password = lines[0] if lines else ""
    if len(password) < SHORTEST:
        raise GossamerError(f"--password-file {file}: its first line should have at least {SHORTEST} characters")
    return password
