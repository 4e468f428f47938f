"""The frame that answers a send is what encoding the reply would give."""

from __future__ import annotations

import pytest

from penstock.broker.remoting.reply_frames import SendReplyFrames
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import RESPONSE, Command
from penstock.protocol.frame import encode


@pytest.mark.parametrize("region", ["DefaultRegion", 'a "quoted" \\ région', "<id><queue><offset>2000000011", ""])
@pytest.mark.parametrize(("opaque", "queue_offset"), [(0, 0), (-(2**31), 2**63 - 1), (2**31 - 1, 12)])
def test_a_frame_is_the_encoded_reply(region: str, opaque: int, queue_offset: int) -> None:
    always = {"MSG_REGION": region, "TRACE_ON": "true"}
    msg_id = "7F00000100002A9F0000000000000123"
    expected = {"msgId": msg_id, "queueId": "3", "queueOffset": str(queue_offset), **always}
    reply = Command(ResponseCode.SUCCESS, expected, b"", opaque, RESPONSE)
    assert SendReplyFrames(always).frame(opaque, msg_id, 3, queue_offset) == encode(reply)
