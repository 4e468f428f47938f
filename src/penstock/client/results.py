"""What a producer is told of a message that it sent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import ResponseCode


class SendStatus(StrEnum):
    """How safely a message is stored; it is stored in all cases."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Not on disk in time, where the broker waits for that."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """Not at a slave in time, where the broker waits for that."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """No slave to wait for."""


STATUSES: Final = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
"""The codes with which a broker says that a message is stored."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """A message that was stored."""

    status: SendStatus
    msg_id: str
    """The id that the producer gave it."""
    offset_msg_id: str
    """The broker's id, which says where it lies."""
    queue: MessageQueue
    queue_offset: int
    region: str = ""
    trace_on: bool = False
    """Whether the broker wants the message traced."""

    @property
    def ok(self) -> bool:
        """Whether it is as safe as the broker promises."""
        return self.status is SendStatus.SEND_OK
