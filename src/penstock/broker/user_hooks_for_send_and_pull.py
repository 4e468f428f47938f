"""Hooks: user code that runs before and after each send and pull, for traces, counters and checks.

A hook is any object with the methods of `SendHook` or `ConsumeHook`. Hooks run on the loop's thread and must be quick.
If `before_send` raises a `Refusal`, that becomes the client's reply, and nothing is stored. The other methods must not
raise a Refusal. Any other exception of a hook is logged and has no effect. Without hooks, no context is built.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.protocol.codes import Refusal

log = logging.getLogger("penstock.broker")


class SendContext(msgspec.Struct, kw_only=True):
    """One send. The fields from `code` on are set after the send, for `after_send`."""

    producer_group: str
    topic: str
    queue_id: int
    property_text: str
    body_size: int
    born_host: str
    born_timestamp: int
    store_host: str
    region: str
    request_timestamp: int
    batch: bool = False

    code: int = -1
    remark: str | None = None
    msg_id: str = ""
    queue_offset: int = -1
    took_ms: float = 0.0


class ConsumeContext(msgspec.Struct, kw_only=True):
    """Messages that a group pulls, or one message that it sends back."""

    consumer_group: str
    topic: str
    queue_id: int
    client_host: str
    store_host: str
    count: int = 0
    size: int = 0
    next_begin_offset: int = -1
    origin_msg_id: str = ""
    """The original message id of a message that is sent back; empty for a pull."""
    success: bool = True


class SendHook(Protocol):
    """`before_send` is called before a message is stored, `after_send` when its reply is known."""

    def before_send(self, context: SendContext) -> None: ...

    def after_send(self, context: SendContext) -> None: ...


class ConsumeHook(Protocol):
    """`before_consume` is called before messages go to a consumer, `after_consume` when it sends a message back."""

    def before_consume(self, context: ConsumeContext) -> None: ...

    def after_consume(self, context: ConsumeContext) -> None: ...


class Hooks:
    """The hooks of one broker."""

    def __init__(self) -> None:
        self.send: list[SendHook] = []
        self.consume: list[ConsumeHook] = []

    def before_send(self, context: SendContext) -> None:
        for hook in self.send:
            _call(hook.before_send, context)

    def after_send(self, context: SendContext) -> None:
        for hook in self.send:
            _call(hook.after_send, context)

    def before_consume(self, context: ConsumeContext) -> None:
        for hook in self.consume:
            _call(hook.before_consume, context)

    def after_consume(self, context: ConsumeContext) -> None:
        for hook in self.consume:
            _call(hook.after_consume, context)


def _call(hook: Callable[..., None], context: SendContext | ConsumeContext) -> None:
    try:
        hook(context)
    except Refusal:
        raise
    except Exception:
        log.exception("a hook failed")
