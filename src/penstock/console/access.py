"""Slows those who guess tokens, by the address that they come from.

A wrong token is answered a little later than it could be, and counts. An address may be wrong so often at once, and so
often a second from then on; beyond that what is wrong is turned away. What is right always passes: behind a proxy all
people have one address, and one page left open with a cookie of yesterday must not lock the others out. So the brake
keeps noise and load down; that a token cannot be guessed is due to its length alone. Cookies count as well: they are
derived from the token. A fixed number of addresses is remembered, those that were wrong last. Belongs to the loop's
thread.


The one page that is shown without a token: plain HTML that asks for it. Whatever goes into it is escaped.

Who may come in: nothing of the console is reachable without its token.

A person opens the link that was printed, which holds the token, or types it; a cookie stands for it from then on
(HttpOnly, SameSite=Strict, not the token itself but what is derived from it). A program sends `Authorization: Bearer`.

Two kinds of foreign web pages are kept out besides. One that has the browser send a request here (cross-site): whatever
is not a plain GET must carry the Origin of the console itself if a cookie speaks for it, and so must every WebSocket.
One whose name was made to lead to this machine (DNS rebinding): the Host must be an address, localhost, or a name that
was given. Who guesses is slowed by a `Brake`. Pure ASGI, no other state but the token; belongs to the loop's thread.
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
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from penstock.errors import BadSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

AT_ONCE: Final = 40
A_SECOND: Final = 5.0
_PAUSE_S: Final = 0.1
MAX_ADDRESSES: Final = 4096


class Brake:
    """How many wrong tokens each address has left."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, pause_s: float = _PAUSE_S) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._left: dict[str, tuple[float, float]] = {}
        """By address: how many are left, and as of when."""

    def __len__(self) -> int:
        """How many addresses were wrong lately."""
        return len(self._left)

    def is_stopped(self, address: str) -> bool:
        """Whether this address was wrong so often that it is turned away when it is wrong once more."""
        return address in self._left and self._now(address) < 1.0

    async def wrong(self, address: str) -> None:
        """Counts a wrong token; returns when it may be answered."""
        left = self._now(address)
        self._left.pop(address, None)
        if len(self._left) >= MAX_ADDRESSES:
            del self._left[next(iter(self._left))]
        self._left[address] = max(0.0, left - 1.0), self._clock()
        await asyncio.sleep(self._pause_s)

    def _now(self, address: str) -> float:
        left, at = self._left.get(address, (float(AT_ONCE), 0.0))
        return min(float(AT_ONCE), left + (self._clock() - at) * A_SECOND)


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
<p>{told}</p>
<form method="post" action="/login">
<input type="hidden" name="next" value="{target}">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" autofocus required>
<button type="submit">Open the console</button>
</form>"""
_ASK = "The console printed a token when it was started."
_WRONG = '<span class="wrong">That is not the token.</span> ' + _ASK


def login_page(target: str, *, wrong: bool = False, is_in: bool = False) -> str:
    """Asks for the token, or, for who `is_in`, goes on to `target`, a path of this site."""
    place = escape(target, quote=True)
    if is_in:
        head = f'<meta http-equiv="refresh" content="0; url={place}">'
        return _PAGE.format(head=head, main=f'<p>Come in: <a href="{place}">the console</a></p>')
    return _PAGE.format(head="", main=_FORM.format(told=_WRONG if wrong else _ASK, target=place))


SHORTEST_TOKEN: Final = 12
LOGIN: Final = "/login"
_SAFE: Final = frozenset({"GET", "HEAD"})
_MAX_OF_A_FORM: Final = 4096
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


class TokenGate:
    """The token, and what is compared with it."""

    def __init__(self, token: str, names: Iterable[str] = (), cookie: str = "penstock_console") -> None:
        """`names` are host names, besides addresses and localhost, under which the console may be asked for."""
        if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            raise BadSettings(f"the console's token must be {SHORTEST_TOKEN} letters, digits or signs, or more")
        self.cookie_name = cookie
        self._token = token.encode()
        self.cookie_value = hmac.new(self._token, b"penstock console cookie", hashlib.sha256).hexdigest()
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}

    def knows_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self._token)

    def cookie_of(self, header: str) -> str | None:
        """The cookie of ours that a header brings, right or wrong."""
        try:
            found = SimpleCookie(header).get(self.cookie_name)
        except CookieError:
            return None
        return None if found is None else found.value

    def knows_cookie(self, cookie: str) -> bool:
        return hmac.compare_digest(cookie.encode("utf-8", "replace"), self.cookie_value.encode())

    def knows_host(self, host: str) -> bool:
        """Whether nobody else's name led here: an address, localhost, or a name that was given."""
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


class Gate:
    """The middleware around everything else."""

    def __init__(self, app: ASGIApp, door: TokenGate, brake: Brake | None = None) -> None:
        self._app = app
        self._door = door
        self._brake = Brake() if brake is None else brake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._door.knows_host(host):
            await _refuse(scope, send, 421, "This console is not known by that name; see `penstock console --name`.")
            return
        origin = headers.get("origin")
        foreign = origin is not None and urlsplit(origin).netloc != host
        unsafe = scope["type"] == "websocket" or scope["method"] not in _SAFE
        if foreign and unsafe:
            await _refuse(scope, send, 403, "A page from elsewhere may not ask for this.")
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        bearer = given.strip() if kind.lower() == "bearer" else None
        cookie = self._door.cookie_of(headers.get("cookie", ""))
        address = scope["client"][0] if scope.get("client") else ""
        tries = bearer is not None or cookie is not None or _brings_token(scope)
        if bearer is not None and self._door.knows_token(bearer):
            await self._app(scope, receive, _with_headers(send))
        elif _brings_token(scope):  # also of who is in already: the token shall not stay in the address
            await self._knock(scope, receive, send, address)
        elif cookie is not None and self._door.knows_cookie(cookie):
            if unsafe and origin is None:
                await _refuse(
                    scope, send, 403, "A request that changes something must say where it comes from (Origin)."
                )
            else:
                await self._app(scope, receive, _with_headers(send))
        else:
            if tries and await self._is_too_much(scope, send, address):
                return
            if scope["type"] == "http":
                await self._knock(scope, receive, send, address)
            else:
                await _refuse(scope, send, 401, "")

    async def _is_too_much(self, scope: Scope, send: Send, address: str) -> bool:
        """Counts a wrong token; turns away who has brought too many."""
        if self._brake.is_stopped(address):
            await _refuse(scope, send, 429, "Too many wrong tokens came from this address; wait a moment.")
            return True
        await self._brake.wrong(address)
        return False

    async def _knock(self, scope: Scope, receive: Receive, send: Send, address: str) -> None:
        """Somebody without a token, or with one in the link or the form."""
        path, asked = scope["path"], scope["query_string"].decode("latin-1")
        query = parse_qs(asked)
        if path == LOGIN and scope["method"] == "POST":
            form = parse_qs((await _body(receive)).decode("latin-1"))
            given, target = form.get("token", [""])[0], form.get("next", ["/"])[0]
        elif "token" in query and scope["method"] == "GET":
            given = query.pop("token")[0]
            target = path + (f"?{urlencode(query, doseq=True)}" if query else "")
        elif scope["method"] == "GET" and _wants_page(scope):
            await _answer(send, 401, login_page(f"{path}?{asked}" if asked else path), kind="text/html; charset=utf-8")
            return
        else:
            await _refuse(scope, send, 401, "The console's token is needed, as Authorization: Bearer.")
            return
        if not self._door.knows_token(given):
            if await self._is_too_much(scope, send, address):
                return
            await _answer(send, 401, login_page(_local(target), wrong=True), kind="text/html; charset=utf-8")
            return
        cookie = f"{self._door.cookie_name}={self._door.cookie_value}; HttpOnly; SameSite=Strict; Path=/"
        # A redirect that a foreign page began would not carry a Strict cookie yet: a page of our own goes on instead.
        page = login_page(_local(target), is_in=True)
        await _answer(send, 200, page, kind="text/html; charset=utf-8", more=[(b"set-cookie", cookie.encode())])


def _brings_token(scope: Scope) -> bool:
    """In the link or, as far as one can see from here, in the form."""
    if scope["type"] != "http":
        return False
    in_link = scope["method"] == "GET" and b"token=" in scope["query_string"]
    return in_link or (scope["method"] == "POST" and scope["path"] == LOGIN)


def _wants_page(scope: Scope) -> bool:
    accepted = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    return b"text/html" in accepted


def _local(target: str) -> str:
    """Where to go on, on this site only."""
    parts = urlsplit(target)
    good = target.startswith("/") and not target.startswith(("//", "/\\")) and not parts.scheme and not parts.netloc
    return target if good and parts.path != LOGIN and target.isprintable() else "/"


async def _body(receive: Receive) -> bytes:
    data, more = b"", True
    while more and len(data) <= _MAX_OF_A_FORM:
        message = await receive()
        data += message.get("body", b"")
        more = message.get("more_body", False)
    return data[:_MAX_OF_A_FORM]


def _with_headers(send: Send) -> Send:
    async def sending(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}  # type: ignore[attr-defined]
            added = [(name, value) for name, value in _HEADERS.items() if name not in present]
            message = {**message, "headers": [*message["headers"], *added]}  # type: ignore[misc]
        await send(message)

    return sending  # type: ignore[return-value]


async def _refuse(scope: Scope, send: Send, status: int, why: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    more = {401: [(b"www-authenticate", b"Bearer")], 429: [(b"retry-after", b"1")]}.get(status)
    await _answer(send, status, f'{{"detail": "{why}"}}', kind="application/json", more=more)


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
