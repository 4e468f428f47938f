"""Nothing of the console is reachable without its token, nor from a foreign page."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from support.clients import TOKEN, ConsoleProcess
from uvicorn.server import ServerState

from penstock.console import server
from penstock.console.console_login import COOKIE_S, AccessPolicy
from penstock.errors import BadSettings

PATHS = ["/", "/topics", "/api/topics", "/api/openapi.json", "/api/docs", "/metrics", "/healthz", "/readyz", "/nothing"]


def asset(client: httpx.Client) -> str:
    """The path of one of NiceGUI's own files."""
    found = re.search(r"/_nicegui/[^\"']+\.js", client.get("/").text)
    assert found is not None
    return found[0]


def upgrade(console: ConsoleProcess, **headers: str) -> int:
    """Asks for a WebSocket; returns the status."""
    place = urlsplit(console.address)
    lines = {
        "Host": place.netloc,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        **{name.capitalize(): value for name, value in headers.items()},
    }
    query = "implicit_handshake=true&client_id=x&EIO=4&transport=websocket"
    request = f"GET /_nicegui_ws/socket.io/?{query} HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in lines.items())
    with socket.create_connection((place.hostname or "", place.port or 0), 10) as raw:
        raw.sendall(request.encode() + b"\r\n")
        return int(raw.recv(4096).split()[1])


def cookie(console: ConsoleProcess) -> str:
    with console.stranger(accept="text/html") as stranger:
        answer = stranger.get(f"/?token={TOKEN}")
    return answer.headers["set-cookie"].partition(";")[0]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "credentials", [{}, {"authorization": f"Bearer {TOKEN}x"}, {"cookie": f"penstock_console={TOKEN}"}]
)
def test_nothing_is_reachable_without_the_token(
    console: ConsoleProcess, path: str, credentials: dict[str, str]
) -> None:
    with console.stranger(**credentials) as stranger:
        for answer in (stranger.get(path), stranger.post(path)):
            assert answer.status_code == 401
            assert TOKEN not in answer.text


def test_neither_are_assets_and_the_websocket(console: ConsoleProcess, client: httpx.Client) -> None:
    path = asset(client)
    assert client.get(path).status_code == 200
    with console.stranger() as stranger:
        assert stranger.get(path).status_code == 401
    assert upgrade(console) in (401, 403)
    assert upgrade(console, cookie=cookie(console), origin=console.address) == 101


def test_the_link_lets_in_and_the_cookie_stands_for_it(console: ConsoleProcess) -> None:
    with console.stranger(accept="text/html") as person:
        asked = person.get("/groups?q=1")
        assert asked.status_code == 401
        assert "<form" in asked.text
        answer = person.get(f"/topics?q=x&token={TOKEN}")
        assert answer.status_code == 200
        assert 'url=/topics?q=x"' in answer.text
        attributes = answer.headers["set-cookie"].lower()
        assert "httponly" in attributes
        assert "samesite=strict" in attributes
        assert TOKEN not in answer.headers["set-cookie"]
        assert person.get("/healthz").status_code == 200
        assert "url=/topics" in person.get(f"/topics?token={TOKEN}").text, "the token does not stay in the address"


def test_the_form_lets_in_and_leads_nowhere_else(console: ConsoleProcess) -> None:
    with console.stranger(accept="text/html", origin=console.address) as person:
        wrong = person.post("/login", data={"token": "guess", "next": "/topics"})
        assert wrong.status_code == 401
        assert "Wrong token" in wrong.text
        for target, leads in (("/topics", "/topics"), ("//evil.example", "/"), ("https://evil.example/", "/")):
            answer = person.post("/login", data={"token": TOKEN, "next": target})
            person.cookies.clear()
            assert f'url={leads}"' in answer.text


def test_a_page_shown_to_a_stranger_escapes_what_was_asked_for(console: ConsoleProcess) -> None:
    with console.stranger(accept="text/html") as person:
        answer = person.get('/"><script>alert(1)</script>')
        assert answer.status_code == 401
        assert "<script>" not in answer.text


def test_requests_from_another_origin_are_refused(console: ConsoleProcess, client: httpx.Client) -> None:
    elsewhere = "https://evil.example"
    body = {"queues": 1, "perm": 6}
    assert client.put("/api/topics/stolen", json=body, headers={"origin": elsewhere}).status_code == 403
    assert client.put("/api/topics/stolen", json=body, headers={"origin": "null"}).status_code == 403
    with console.stranger(cookie=cookie(console)) as person:
        assert person.get("/api/brokers").status_code == 200
        assert person.put("/api/topics/stolen", json=body, headers={"origin": elsewhere}).status_code == 403
        assert person.put("/api/topics/stolen", json=body).status_code == 403, "a cookie alone proves no intent"
    assert upgrade(console, cookie=cookie(console), origin=elsewhere) == 403
    assert upgrade(console, cookie=cookie(console)) == 403
    assert client.get("/api/topics/stolen").status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "["])
def test_a_name_that_leads_here_without_our_knowledge_is_refused(client: httpx.Client, host: str) -> None:
    assert client.get("/api/brokers", headers={"host": host}).status_code in (400, 421)


def test_addresses_localhost_and_given_names_are_known() -> None:
    policy = AccessPolicy("a-token-of-some-length", names=["MQ.example.org"])
    assert all(map(policy.allows_host, ["127.0.0.1:8080", "[::1]:8080", "localhost", "10.1.2.3", "mq.example.org:80"]))
    assert not any(map(policy.allows_host, ["example.org", "mq.example.org.evil.example", "", "["]))


@pytest.mark.parametrize("token", ["", "short", "has a space in it", "tökens are ascii only"])
def test_a_token_that_is_easy_to_guess_or_hard_to_send_is_not_taken(token: str) -> None:
    with pytest.raises(BadSettings, match="token must be"):
        AccessPolicy(token)


def test_answers_may_not_be_framed_or_sniffed(client: httpx.Client) -> None:
    headers = client.get("/api/brokers").headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "http://]x[:5/", "null", ""])
def test_a_broken_origin_is_another_origin(console: ConsoleProcess, client: httpx.Client, origin: str) -> None:
    body = {"queues": 1, "perm": 6}
    assert client.put("/api/topics/stolen", json=body, headers={"origin": origin}).status_code == 403
    assert client.get("/api/brokers", headers={"origin": origin}).status_code == 200
    assert upgrade(console, cookie=cookie(console), origin=origin) == 403


def test_a_broken_target_of_the_form_leads_to_the_start(console: ConsoleProcess) -> None:
    with console.stranger(accept="text/html", origin=console.address) as person:
        for target in "http://[", "//[", "x://[::1/":
            answer = person.post("/login", data={"token": TOKEN, "next": target})
            assert (answer.status_code, 'url=/"' in answer.text) == (200, True)
            person.cookies.clear()


def test_a_cookie_ends() -> None:
    now = 1_700_000_000.0
    policy = AccessPolicy(TOKEN, clock=lambda: now)
    cookie = policy.make_cookie()
    end, _, signature = cookie.partition(".")
    assert policy.is_cookie(cookie)
    for forged in f"{int(end) + 1}.{signature}", end, f"{end}.", f".{signature}", f"x{cookie}", "", "\u0662.x":
        assert not policy.is_cookie(forged)
    now += COOKIE_S - 1
    assert policy.is_cookie(cookie)
    now += 2
    assert not policy.is_cookie(cookie)
    assert not AccessPolicy(f"{TOKEN}x").is_cookie(AccessPolicy(TOKEN).make_cookie())


def test_the_cookie_is_found_among_others(console: ConsoleProcess) -> None:
    policy = AccessPolicy(TOKEN)
    for header, found in [
        ("penstock_console=1.a", "1.a"),
        ('a="x;y"; penstock_console=1.a; b', "1.a"),
        ("xpenstock_console=1.a", None),
        ("\\" * 60_000, None),
        ("", None),
    ]:
        assert policy.cookie_of(header) == found
    attributes = httpx.get(f"{console.address}/?token={TOKEN}", headers={"accept": "text/html"}).headers["set-cookie"]
    assert f"Max-Age={COOKIE_S}" in attributes


def test_endless_headers_end_the_connection(console: ConsoleProcess) -> None:
    host, port = console.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 30) as endless:
        with contextlib.suppress(OSError):
            endless.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            for _ in range(200):
                endless.sendall(b"X-More: " + b"x" * 1000 + b"\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert endless.recv(1) == b""


def test_slow_headers_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the protocol alone: the first request, and a second one on the same connection."""
    monkeypatch.setattr(server, "HEADERS_S", 0.05)

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def main() -> None:
        config = uvicorn.Config(app, http=server.LimitedHttp, lifespan="off", log_config=None, log_level=None)
        config.load()
        state = ServerState()
        listening = await asyncio.get_running_loop().create_server(
            lambda: server.LimitedHttp(config, state, {}), "127.0.0.1", 0
        )
        for before in b"", b"GET / HTTP/1.1\r\nhost: a\r\n\r\n":
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            writer.write(before)
            if before:
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            writer.write(b"GET / HTTP/1.1\r\nhost: ")
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
        listening.close()

    asyncio.run(main())
