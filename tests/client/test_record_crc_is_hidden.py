"""Records with their own CRC (enabledAppendPropCRC): no client sees the property."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client import Message, Producer, PullConsumer
from penstock.client.admin import Admin
from penstock.format.constants import CRC32
from penstock.testing import broker

if TYPE_CHECKING:
    from client.conftest import Run

SETTINGS = {"enabledAppendPropCRC": "true", "messageDelayLevel": "0s"}


def test_nobody_is_shown_it(run: Run) -> None:
    async def main() -> None:
        async with (
            Producer("PID", b.namesrv) as producer,
            PullConsumer("CID", b.namesrv) as consumer,
            Admin(b.namesrv) as admin,
        ):
            sent = await producer.send(Message("orders", b"plain", keys=("k",), properties={"a": "b"}))
            await producer.send(Message("orders", b"delayed", delay_level=1), queue=sent.queue)
            b.settle()
            page = await consumer.pull(sent.queue, 0)
            while len(page.messages) < 2:
                page = await consumer.pull(sent.queue, 0)
            shown = [
                *page.messages,
                *await admin.messages.by_key("orders", "k"),
                *await admin.messages.by_unique_id("orders", sent.msg_id),
                await admin.messages.by_offset_id(sent.offset_msg_id),
                await admin.messages.at(sent.queue, 0),
            ]
            assert [CRC32 in message.properties for message in shown if message] == [False] * 6
            assert shown[0].properties["a"] == "b"

    with broker({"orders": 1}, settings=SETTINGS) as b:
        run(main())
        logs = (b.store_path / "commitlog").iterdir()
        assert any(CRC32.encode() in file.read_bytes() for file in logs), "it is there"
