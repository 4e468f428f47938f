"""Wrong tokens are delayed and then rejected by address; the right token always passes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
from support.clients import TOKEN

from penstock.console.console_login import (
    BURST,
    MAX_ADDRESSES,
    PER_SECOND,
    AccessMiddleware,
    AccessPolicy,
    LoginThrottle,
)

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def guess(throttle: LoginThrottle, address: str, times: int) -> None:
    async def act() -> None:
        for _ in range(times):
            await throttle.record_failure(address)

    asyncio.run(act())


def test_an_address_may_be_wrong_so_often_and_again_after_a_while() -> None:
    clock = Clock()
    throttle = LoginThrottle(clock, pause_s=0.0)
    guess(throttle, "10.0.0.1", BURST - 1)
    assert not throttle.is_blocked("10.0.0.1")
    guess(throttle, "10.0.0.1", 1)
    assert throttle.is_blocked("10.0.0.1")
    assert not throttle.is_blocked("10.0.0.2")
    clock.now += 1.5 / PER_SECOND
    assert not throttle.is_blocked("10.0.0.1")
    guess(throttle, "10.0.0.1", 1)
    assert throttle.is_blocked("10.0.0.1")
    clock.now += 3600
    guess(throttle, "10.0.0.1", BURST - 1)
    assert not throttle.is_blocked("10.0.0.1"), "the allowance refills, but not beyond the burst"


def test_only_so_many_addresses_are_remembered() -> None:
    async def act() -> None:
        for number in range(MAX_ADDRESSES + 10):
            await throttle.record_failure(f"10.0.{number >> 8}.{number & 255}")

    throttle = LoginThrottle(pause_s=0.0)
    asyncio.run(act())
    assert len(throttle) == MAX_ADDRESSES


async def _welcome(scope: Scope, receive: Receive, send: Send) -> None:
    """The application behind the middleware."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"welcome"})


def test_too_many_wrong_tokens_are_rejected_in_link_form_cookie_and_header() -> None:
    clock = Clock()
    policy = AccessPolicy(TOKEN, cookie="token_cookie")
    middleware = AccessMiddleware(_welcome, policy, LoginThrottle(clock, pause_s=0.0))
    right = {"authorization": f"Bearer {TOKEN}"}

    async def statuses(address: str) -> list[int]:
        transport = httpx.ASGITransport(middleware, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return [
                (await client.get("/?token=guess")).status_code,
                (await client.post("/login", data={"token": "guess"})).status_code,
                (await client.get("/", headers={"cookie": "token_cookie=guess"})).status_code,
                (await client.get("/", headers={"authorization": "Bearer guess"})).status_code,
                (await client.get("/")).status_code,
                (await client.get("/", headers=right)).status_code,
                (await client.get("/", headers={"cookie": f"token_cookie={policy.make_cookie()}"})).status_code,
                (await client.get(f"/?token={TOKEN}")).status_code,
                (await client.post("/login", data={"token": TOKEN})).status_code,
            ]

    for _ in range(BURST // 4):
        assert asyncio.run(statuses("10.0.0.1")) == [401, 401, 401, 401, 401, 200, 200, 200, 200]
    for _ in range(2):
        found = asyncio.run(statuses("10.0.0.1"))
        assert found[:5] == [429, 429, 429, 429, 401], "a request without a token is not a guess"
        assert found[5:] == [200, 200, 200, 200], "the right token passes, also from a blocked address"
    assert asyncio.run(statuses("10.0.0.2"))[:5] == [401, 401, 401, 401, 401], "other addresses are not affected"
    clock.now += 5 / PER_SECOND
    assert asyncio.run(statuses("10.0.0.1"))[:5] == [401, 401, 401, 401, 401]
