"""A few small messages must not take the console's memory."""

from __future__ import annotations

import asyncio
import tracemalloc
import zlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.client.message import ReceivedMessage
from penstock.client.pull_requests import PullStatus
from penstock.console import message_search
from penstock.console.cached_cluster import ClusterView
from penstock.console.message_search import MAX_ANSWER_BYTES, MessageSearch, body_of, describe_all
from penstock.errors import BadRequest
from penstock.format.record import Record

COMPRESSED = 1
BOMB = zlib.compress(bytes(60 << 20), 9)


def message(body: bytes, sys_flag: int = 0, size: int = 0) -> ReceivedMessage:
    return ReceivedMessage(Record("T", body=body, sys_flag=sys_flag, size=size), "a")


def test_compressed_bodies_that_are_too_large_together_are_shown_as_stored() -> None:
    assert len(BOMB) < 62_000
    tracemalloc.start()
    try:
        described = describe_all([message(BOMB, COMPRESSED) for _ in range(15)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {each.body_size for each in described} == {len(BOMB)}
    assert "more than 16777216 bytes" in described[0].note
    assert peak < 4 * MAX_ANSWER_BYTES


def test_one_answer_has_a_budget_for_all_its_bodies() -> None:
    large = zlib.compress(bytes(7 << 20))
    described = describe_all([*[message(large, COMPRESSED)] * 3, message(bytes(3 << 20)), message(b"x")])
    sizes = [7 << 20, 7 << 20, len(large), 0, 1]
    assert [each.body_size for each in described] == sizes
    assert [bool(each.note) for each in described] == [False, False, True, True, False]
    assert described[3].note == "left out: an answer has at most 16777216 bytes of bodies"


def test_a_message_does_not_keep_what_was_inflated_for_a_look() -> None:
    shown = message(zlib.compress(b"a" * 1000), COMPRESSED)
    assert body_of(shown) == (b"a" * 1000, "")
    assert body_of(shown, 999) == (shown.record.body, f"shown as stored: {refusal(shown, 999)}")
    assert "body" not in vars(shown)


def refusal(compressed: ReceivedMessage, limit: int) -> str:
    with pytest.raises(BadRequest) as caught:
        compressed.inflated(limit)
    return str(caught.value)


def test_a_search_stops_when_the_records_it_holds_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_search, "MAX_FOUND_BYTES", 10_000)
    pages = 0

    async def page(_queue: object, offset: int, **_: object) -> SimpleNamespace:
        nonlocal pages
        pages += 1
        return SimpleNamespace(messages=[message(b"", size=4000)], status=PullStatus.FOUND, next_offset=offset + 1)

    view = SimpleNamespace(admin=SimpleNamespace(messages=SimpleNamespace(page=page)))
    with pytest.raises(BadRequest, match="take more than 10000 bytes; ask for fewer messages"):
        asyncio.run(MessageSearch(cast(ClusterView, cast(Any, view))).by_offset("T", "a", 0, 0))
    assert pages == 3
