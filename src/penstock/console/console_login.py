"""Access control: every request to the console needs its token, except the login page.

A person opens the printed link, which contains the token, or types the token into the login page. Afterwards a cookie
(HttpOnly, SameSite=Strict, derived from the token, valid for a day) authenticates the browser. A program sends
`Authorization: Bearer`.

Two more attacks are prevented. Against cross-site requests: a request with the cookie that is not GET or HEAD, and
every WebSocket with the cookie, must have the console's own Origin. Against DNS rebinding: the Host must be an IP
address, localhost, or an allowed name. `LoginThrottle` slows down guessing. The module is plain ASGI. It is not
thread-safe: it runs on the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable, Iterable
from html import escape
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from penstock.errors import BadSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MIN_TOKEN: Final = 12
BURST: Final = 40
PER_SECOND: Final = 5.0
_PAUSE_S: Final = 0.1
MAX_ADDRESSES: Final = 4096
COOKIE_S: Final = 24 * 3600
LOGIN: Final = "/login"
_SAFE: Final = frozenset({"GET", "HEAD"})
_MAX_FORM: Final = 4096
_HEADERS: Final = {
    b"content-security-policy": b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    b"style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; connect-src 'self'; "
    b"object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    b"x-frame-options": b"DENY",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
}


def make_token() -> str:
    return secrets.token_urlsafe(24)


class AccessPolicy:
    """The token, the cookies derived from it, and the allowed host names."""

    def __init__(
        self,
        token: str,
        names: Iterable[str] = (),
        cookie: str = "penstock_console",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`names` are allowed host names, besides IP addresses and localhost. Raises BadSettings for a short token."""
        if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            raise BadSettings(
                f"the console's token must be at least {MIN_TOKEN} printable ASCII characters without spaces"
            )
        self.cookie_name = cookie
        self._token = token.encode()
        self._clock = clock
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}

    def is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self._token)

    def cookie_of(self, header: str) -> str | None:
        """Returns the value of the console's cookie in a Cookie header, without checking it; None if the cookie is
        missing.
        """
        for pair in header.split(";"):
            name, _, value = pair.strip().partition("=")
            if name == self.cookie_name:
                return value
        return None

    def make_cookie(self) -> str:
        """Returns the value of a cookie that is valid for `COOKIE_S` seconds: when it ends, and a signature."""
        return self._signed(str(int(self._clock()) + COOKIE_S))

    def is_cookie(self, cookie: str) -> bool:
        """Whether a cookie was made with this token and is still valid."""
        end, _, _ = cookie.partition(".")
        if not (end.isascii() and end.isdecimal() and len(end) < 16):
            return False
        is_ours = hmac.compare_digest(cookie.encode("utf-8", "replace"), self._signed(end).encode())
        return is_ours and self._clock() < int(end)

    def _signed(self, end: str) -> str:
        return f"{end}.{hmac.new(self._token, f'penstock console cookie {end}'.encode(), hashlib.sha256).hexdigest()}"

    def allows_host(self, host: str) -> bool:
        """Whether a Host header is an IP address, localhost, or an allowed name."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class LoginThrottle:
    """Rate limit of wrong tokens, by client address: a token bucket.

    Each wrong token is answered with a delay. An address may send `BURST` wrong tokens at once and then `PER_SECOND`;
    further wrong tokens are rejected. The right token is always accepted. Otherwise one browser with an old cookie
    could lock out all people behind the same proxy, who share one address. So the throttle only limits the load; a long
    token prevents guessing. Wrong cookies count as wrong tokens. Only the last `MAX_ADDRESSES` addresses are
    remembered.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, pause_s: float = _PAUSE_S) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._remaining: dict[str, tuple[float, float]] = {}
        """By address: the number of wrong tokens still allowed, and the time on `clock` when it was computed."""

    def __len__(self) -> int:
        """The number of addresses remembered."""
        return len(self._remaining)

    def is_blocked(self, address: str) -> bool:
        """Whether the next wrong token from this address is rejected."""
        return address in self._remaining and self._refilled(address) < 1.0

    async def record_failure(self, address: str) -> None:
        """Counts a wrong token, and waits for the delay before its answer."""
        remaining = self._refilled(address)
        self._remaining.pop(address, None)
        if len(self._remaining) >= MAX_ADDRESSES:
            del self._remaining[next(iter(self._remaining))]
        self._remaining[address] = max(0.0, remaining - 1.0), self._clock()
        await asyncio.sleep(self._pause_s)

    def _refilled(self, address: str) -> float:
        remaining, at = self._remaining.get(address, (float(BURST), 0.0))
        return min(float(BURST), remaining + (self._clock() - at) * PER_SECOND)


class AccessMiddleware:
    """ASGI middleware that checks token, host and origin of every request. Its only state is the log-in throttle."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy, throttle: LoginThrottle | None = None) -> None:
        self._app = app
        self._policy = policy
        self._throttle = LoginThrottle() if throttle is None else throttle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._policy.allows_host(host):
            await _refuse(scope, send, 421, "This host name is not allowed; start the console with --name.")
            return
        origin = headers.get("origin")
        foreign = origin is not None and _netloc(origin) != host
        unsafe = scope["type"] == "websocket" or scope["method"] not in _SAFE
        if foreign and unsafe:
            await _refuse(scope, send, 403, "Requests from other sites are not allowed.")
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        bearer = given.strip() if kind.lower() == "bearer" else None
        cookie = self._policy.cookie_of(headers.get("cookie", ""))
        address = scope["client"][0] if scope.get("client") else ""
        has_credentials = bearer is not None or cookie is not None or _brings_token(scope)
        if bearer is not None and self._policy.is_token(bearer):
            await self._app(scope, receive, _with_headers(send))
        elif _brings_token(scope):  # also if logged in: the login removes the token from the address bar
            await self._login(scope, receive, send, address)
        elif cookie is not None and self._policy.is_cookie(cookie):
            if unsafe and origin is None:
                await _refuse(scope, send, 403, "A request that changes something needs an Origin header.")
            else:
                await self._app(scope, receive, _with_headers(send))
        else:
            if has_credentials and await self._rejects(scope, send, address):
                return
            if scope["type"] == "http":
                await self._login(scope, receive, send, address)
            else:
                await _refuse(scope, send, 401, "")

    async def _rejects(self, scope: Scope, send: Send, address: str) -> bool:
        """Counts a wrong token. If the address has sent too many, sends status 429 instead and returns True."""
        if self._throttle.is_blocked(address):
            await _refuse(scope, send, 429, "Too many wrong tokens from this address; wait a moment.")
            return True
        await self._throttle.record_failure(address)
        return False

    async def _login(self, scope: Scope, receive: Receive, send: Send, address: str) -> None:
        """Handles a request without valid credentials, and logins by a token in the link or in the form."""
        path, query_string = scope["path"], scope["query_string"].decode("latin-1")
        query = parse_qs(query_string)
        if path == LOGIN and scope["method"] == "POST":
            form = parse_qs((await _body(receive)).decode("latin-1"))
            given, target = form.get("token", [""])[0], form.get("next", ["/"])[0]
        elif "token" in query and scope["method"] == "GET":
            given = query.pop("token")[0]
            target = path + (f"?{urlencode(query, doseq=True)}" if query else "")
        elif scope["method"] == "GET" and _wants_page(scope):
            await _answer(
                send,
                401,
                login_page(f"{path}?{query_string}" if query_string else path),
                kind="text/html; charset=utf-8",
            )
            return
        else:
            await _refuse(scope, send, 401, "The console's token is required, as Authorization: Bearer.")
            return
        if not self._policy.is_token(given):
            if await self._rejects(scope, send, address):
                return
            await _answer(send, 401, login_page(_local(target), wrong=True), kind="text/html; charset=utf-8")
            return
        cookie = f"{self._policy.cookie_name}={self._policy.make_cookie()}; Max-Age={COOKIE_S}; Path=/"
        cookie += "; HttpOnly; SameSite=Strict"
        # No redirect: a browser sends no Strict cookie in a redirect chain from another site. A page forwards instead.
        page = login_page(_local(target), logged_in=True)
        await _answer(send, 200, page, kind="text/html; charset=utf-8", more=[(b"set-cookie", cookie.encode())])


# -- login page ------------------------------------------------------------------------------------------------------


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Penstock</title>
<meta name="viewport" content="width=device-width, initial-scale=1">{head}
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; display: grid; place-items: center; min-height: 100vh; margin: 0 }}
main {{ width: min(22rem, 90vw) }}
input, button {{ font: inherit; width: 100%; box-sizing: border-box; padding: .6rem .8rem; border-radius: .5rem;
  border: 1px solid #8888; margin: .4rem 0 }}
button {{ background: #0f766e; color: white; border: 0; cursor: pointer }}
.wrong {{ color: #dc2626 }}
</style></head><body><main>{main}</main></body></html>
"""
_FORM = """<h1>Penstock</h1>
<p>{prompt}</p>
<form method="post" action="/login">
<input type="hidden" name="next" value="{target}">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" autofocus required>
<button type="submit">Log in</button>
</form>"""
_PROMPT = "The console printed a token when it started."
_WRONG = '<span class="wrong">Wrong token.</span> ' + _PROMPT


def login_page(target: str, *, wrong: bool = False, logged_in: bool = False) -> str:
    """Returns the login form, the only page without a token. Once `logged_in`, returns a page that forwards to
    `target`, a path of this site.
    """
    path = escape(target, quote=True)
    if logged_in:
        head = f'<meta http-equiv="refresh" content="0; url={path}">'
        return _PAGE.format(head=head, main=f'<p>Logged in: <a href="{path}">open the console</a></p>')
    return _PAGE.format(head="", main=_FORM.format(prompt=_WRONG if wrong else _PROMPT, target=path))


# -- requests and responses ------------------------------------------------------------------------------------------


def _brings_token(scope: Scope) -> bool:
    """Whether the link contains a token, or the request submits the login form."""
    if scope["type"] != "http":
        return False
    in_link = scope["method"] == "GET" and b"token=" in scope["query_string"]
    return in_link or (scope["method"] == "POST" and scope["path"] == LOGIN)


def _wants_page(scope: Scope) -> bool:
    accepted = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    return b"text/html" in accepted


def _local(target: str) -> str:
    """Returns `target` if it is a path of this site, else "/"."""
    if not target.startswith("/") or target.startswith(("//", "/\\")) or not target.isprintable():
        return "/"
    return "/" if urlsplit(target).path == LOGIN else target


def _netloc(origin: str) -> str | None:
    """Returns host and port of an Origin header; None if it is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


async def _body(receive: Receive) -> bytes:
    data, more = b"", True
    while more and len(data) <= _MAX_FORM:
        message = await receive()
        data += message.get("body", b"")
        more = message.get("more_body", False)
    return data[:_MAX_FORM]


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}  # type: ignore[attr-defined]
            added = [(name, value) for name, value in _HEADERS.items() if name not in present]
            message = {**message, "headers": [*message["headers"], *added]}  # type: ignore[misc]
        await send(message)

    return send_with_headers  # type: ignore[return-value]


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    more = {401: [(b"www-authenticate", b"Bearer")], 429: [(b"retry-after", b"1")]}.get(status)
    await _answer(send, status, f'{{"detail": "{reason}"}}', kind="application/json", more=more)


async def _answer(
    send: Send, status: int, text: str, *, kind: str, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    body = text.encode()
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        *_HEADERS.items(),
        *(more or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
