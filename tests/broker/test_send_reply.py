"""The frame that answers a send is what encoding the reply would give."""

from __future__ import annotations

import pytest

from penstock.broker.remoting.reply_frames import SendReplyFrames
from penstock.errors import BadRequest
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import RESPONSE, Command
from penstock.protocol.frame import MAX_HEADER, encode
from penstock.protocol.headers.send import MAX_IDS, batch_limit


@pytest.mark.parametrize("region", ["DefaultRegion", 'a "quoted" \\ région', "<id><queue><offset>2000000011", ""])
@pytest.mark.parametrize(("opaque", "queue_offset"), [(0, 0), (-(2**31), 2**63 - 1), (2**31 - 1, 12)])
def test_a_frame_is_the_encoded_reply(region: str, opaque: int, queue_offset: int) -> None:
    always = {"MSG_REGION": region, "TRACE_ON": "true"}
    msg_id = "7F00000100002A9F0000000000000123"
    expected = {"msgId": msg_id, "queueId": "3", "queueOffset": str(queue_offset), **always}
    reply = Command(ResponseCode.SUCCESS, expected, b"", opaque, RESPONSE)
    assert SendReplyFrames(always).frame(opaque, msg_id, 3, queue_offset) == encode(reply)


def test_a_frame_that_no_peer_would_read_is_refused() -> None:
    frames = SendReplyFrames({"MSG_REGION": "here", "TRACE_ON": "true"})
    longest = MAX_HEADER - (len(frames.frame(1, "", 0, 0)) - 8)
    assert len(frames.frame(1, "x" * longest, 0, 0)) == 8 + MAX_HEADER
    with pytest.raises(BadRequest, match="too long for a header"):
        frames.frame(1, "x" * (longest + 1), 0, 0)


def test_the_ids_of_the_largest_batch_leave_room_for_the_rest_of_a_header() -> None:
    assert MAX_HEADER - MAX_IDS == 16 << 10
    for id_length in (32, 56):
        assert MAX_IDS - id_length - 1 < batch_limit(id_length) * (id_length + 1) <= MAX_IDS
