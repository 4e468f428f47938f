"""The frame that answers a pull is what encoding the reply would give."""

from __future__ import annotations

import pytest

from penstock.broker.remoting.reply_frames import pull_reply_head
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import RESPONSE, Command
from penstock.protocol.frame import encode


@pytest.mark.parametrize("opaque", [0, -(2**31), 2**31 - 1, 2_000_000_011])
@pytest.mark.parametrize("offsets", [(32, 0, 100), (2**63 - 1, 2**62, 2**63 - 1)])
@pytest.mark.parametrize("body", [b"", b"records"])
def test_head_and_records_are_the_encoded_reply(opaque: int, offsets: tuple[int, int, int], body: bytes) -> None:
    names = ("nextBeginOffset", "minOffset", "maxOffset")
    told = {"suggestWhichBrokerId": "0", **dict(zip(names, map(str, offsets), strict=True))}
    reply = Command(ResponseCode.SUCCESS, told, body, opaque, RESPONSE, "FOUND")
    assert pull_reply_head(opaque, *offsets, len(body)) + body == encode(reply)
