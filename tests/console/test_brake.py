"""Who guesses tokens is slowed, and turned away when it is too much; who has the right one never notices."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
from support.clients import TOKEN

from penstock.console.access import A_SECOND, AT_ONCE, MAX_ADDRESSES, Brake, Gate, TokenGate

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def guess(brake: Brake, address: str, times: int) -> None:
    async def act() -> None:
        for _ in range(times):
            await brake.wrong(address)

    asyncio.run(act())


def test_an_address_may_be_wrong_so_often_and_again_after_a_while() -> None:
    clock = Clock()
    brake = Brake(clock, pause_s=0.0)
    guess(brake, "10.0.0.1", AT_ONCE - 1)
    assert not brake.is_stopped("10.0.0.1")
    guess(brake, "10.0.0.1", 1)
    assert brake.is_stopped("10.0.0.1")
    assert not brake.is_stopped("10.0.0.2")
    clock.now += 1.5 / A_SECOND
    assert not brake.is_stopped("10.0.0.1")
    guess(brake, "10.0.0.1", 1)
    assert brake.is_stopped("10.0.0.1")
    clock.now += 3600
    guess(brake, "10.0.0.1", AT_ONCE - 1)
    assert not brake.is_stopped("10.0.0.1"), "what was long ago is forgotten, but no more than that is allowed at once"


def test_only_so_many_addresses_are_remembered() -> None:
    async def act() -> None:
        for number in range(MAX_ADDRESSES + 10):
            await brake.wrong(f"10.0.{number >> 8}.{number & 255}")

    brake = Brake(pause_s=0.0)
    asyncio.run(act())
    assert len(brake) == MAX_ADDRESSES


async def _welcome(scope: Scope, receive: Receive, send: Send) -> None:
    """What is behind the gate."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"welcome"})


def test_whoever_guesses_too_often_is_turned_away_by_link_form_cookie_and_header() -> None:
    clock = Clock()
    door = TokenGate(TOKEN, cookie="token_cookie")
    gate = Gate(_welcome, door, Brake(clock, pause_s=0.0))
    right = {"authorization": f"Bearer {TOKEN}"}

    async def statuses(address: str) -> list[int]:
        transport = httpx.ASGITransport(gate, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return [
                (await client.get("/?token=guess")).status_code,
                (await client.post("/login", data={"token": "guess"})).status_code,
                (await client.get("/", headers={"cookie": "token_cookie=guess"})).status_code,
                (await client.get("/", headers={"authorization": "Bearer guess"})).status_code,
                (await client.get("/")).status_code,
                (await client.get("/", headers=right)).status_code,
                (await client.get("/", headers={"cookie": f"token_cookie={door.cookie_value}"})).status_code,
                (await client.get(f"/?token={TOKEN}")).status_code,
                (await client.post("/login", data={"token": TOKEN})).status_code,
            ]

    for _ in range(AT_ONCE // 4):
        assert asyncio.run(statuses("10.0.0.1")) == [401, 401, 401, 401, 401, 200, 200, 200, 200]
    for _ in range(2):
        found = asyncio.run(statuses("10.0.0.1"))
        assert found[:5] == [429, 429, 429, 429, 401], "without a token nobody guesses"
        assert found[5:] == [200, 200, 200, 200], "the right one passes, whoever else is at that address"
    assert asyncio.run(statuses("10.0.0.2"))[:5] == [401, 401, 401, 401, 401], "others do not notice"
    clock.now += 5 / A_SECOND
    assert asyncio.run(statuses("10.0.0.1"))[:5] == [401, 401, 401, 401, 401]
