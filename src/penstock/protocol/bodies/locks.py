"""Locks of queues for ordered consumption: 41 and 42."""

from __future__ import annotations

import msgspec

from penstock.protocol.bodies.base import Body
from penstock.protocol.bodies.queues import MessageQueue


class LockBatchRequestBody(Body, kw_only=True):
    """41 and 42: the queues that a client wants to lock, or to release."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = []


class LockBatchResponseBody(Body, kw_only=True):
    """41: those that the client holds now."""

    locked: list[MessageQueue] = msgspec.field(default_factory=list, name="lockOKMQSet")
