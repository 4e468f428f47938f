"""The appender, which declines every message here; prefault; client batches. Twin of append.pxi.

So every message takes the store's general path, which is also the reference for the bytes that the compiled appender
writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import BadMessage
from penstock.format.batch import decode_batch_body
from penstock.format.kernels.parameter_types import WritableBuffer
from penstock.format.properties import join_properties


class Appender:
    """Keeps the tables that the store shares with it, and declines every message.

    message_type      the class of messages
    result_type       called with (ok, physical offset, size, queue id, queue offset, store timestamp, store host)
    ok                the status for the result
    clock             returns milliseconds; None reads the system's clock
    store_host_text   the store host of messages that have none, as text
    store_host        the same in its 8 or 20 bytes
    max_body_bytes    the largest body; may be set
    max_record_bytes  the largest record; may be set
    has_record_crc    whether each record gets RECORD_CRC, with its CRC, as its last property
    """

    def __init__(
        self,
        message_type: type[Any],
        result_type: Callable[..., Any],
        ok: object,
        clock: Callable[[], int] | None,
        store_host_text: str,
        store_host: bytes,
        max_body_bytes: int,
        max_record_bytes: int,
        has_record_crc: bool,
    ) -> None:
        self.max_body_bytes, self.max_record_bytes = max_body_bytes, max_record_bytes
        self.is_open = False
        """False while another thread appends, or while appends are not allowed: everything is declined."""
        self.is_follower_asleep = False
        """True to have `wake` called after the next append."""
        self.wake: Callable[[], object] = _noop
        """Called after an append if the follower is asleep."""
        self.needs_ack = False
        """Whether a put waits for the disk or a slave after the append: `resume` does it."""
        self.resume: Callable[[Any, Any], Any] = _decline
        """`put` calls it with a message and the result of its append, None if that was declined, and returns its
        result."""
        self.page_need: Callable[[], object] = _noop
        """Called after every 8 MiB: it is time to prefault the next pages."""
        self.queues: dict[str, dict[int, int]] = {}
        """Legal topics, each with the next queue offset of each of its queues."""
        self.hosts: dict[str, bytes] = {}
        """Known hosts as text, each with its bytes."""
        self.newest_timestamp = 0
        self.count = self.bytes_appended = self.slowest_ns = self.total_ns = 0
        self.latency_counts = [0] * 16
        """How many messages took up to 1, 2, 5, 10, 20, 50, 100, 200, 500 ms, 1, 2, 3, 4, 5, 10 s, and longer."""

    def attach(self, target: WritableBuffer, marks: WritableBuffer, from_offset: int) -> None:
        """From now on appends go to the file `target`, which starts at the physical offset `from_offset`.

        `marks` are two int64: the end of the records in the file, and the newest store timestamp. Appends update both.
        """

    def detach(self) -> None:
        """Releases the file's memory; everything is declined until the next `attach`."""

    def append_many(self, messages: object) -> Any:
        """Appends a list of messages, which become visible at once; returns their results, or None to decline all."""
        return None

    def put(self, message: object) -> Any:
        """Appends a message and returns its result. `resume` puts what `append` declines, and waits for acks."""
        return self.resume(message, None)

    def append(self, message: object) -> Any:
        """Appends a message and returns its result, or None to decline."""
        return None


def _noop() -> None:
    """Does nothing."""


def _decline(message: object, result: Any) -> Any:
    """Returns the result of the append."""
    return result


def prefault(out: WritableBuffer, start: int, stop: int) -> None:
    """Takes the page faults of out[start:stop] in the compiled twin; does nothing here."""


def split_batch(data: bytes, common: bytes) -> list[tuple[int, bytes, str]] | None:
    """Splits the body of a client's batch into (flag, body, property text) of each message.

    Appends the properties `common` to those of each message. Returns None if lengths do not fit or properties are not
    UTF-8: `decode_batch_body` then says what is wrong.
    """
    try:
        return [
            (item.flag, item.body, join_properties(item.properties, common).decode())
            for item in decode_batch_body(data)
        ]
    except (BadMessage, UnicodeDecodeError):
        return None
