"""The request path, which takes no frame here. Twin of requests.pxi.

So every request takes the broker's general path, which is also the reference for what the compiled request path stores
and replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.format.kernels.plain.append import Appender
from penstock.format.kernels.plain.read import QueuePages


class RequestPath:
    """Serves ordinary requests straight from the bytes of a connection.

    Each frame is served as a whole or left untouched. A send is ordinary if its topic is in `topics`, its message is
    ordinary for the appender, and it asks for nothing but to be stored. A pull is ordinary if it wants all messages, or
    those of its group's subscription, and `calls` finds some; an offset if `calls` commits or finds it.

    appender      appends the messages of sends
    topics        topics that take ordinary sends, each with its number of queues
    held          queues, as (topic, queue id), for which pulls wait
    pulled        what `calls.pull` has kept for its key: (QueuePages, [messages, bytes]). Later pulls with the same key
                  are served from the pages, and counted in the list
    calls         what is done in Python:
                      when_safe(client, end offset, messages, seconds, count, replies), after sends whose replies wait:
                      `messages` end at that offset of the log and took `seconds` in all; `replies` are the frames for
                      `count` of them, the others want none. It must not raise
                      on_stored(topic, queue id), after a send to a queue in `held`
                      count_sent(topic, messages, bytes)
                      pull(client, key, group, topic, queue id, offset, count, sysFlag, commitOffset, subVersion), which
                      returns a page with data, next_begin_offset, min_offset and max_offset, or None. It may add the
                      key to `pulled`, if the pull wants all messages
                      commit_pulled(client, group, topic, queue id, offset), for a pull that was served from `pulled`
                      count_got(pages, messages, bytes, seconds), for pulls that were served from `pulled`
                      consume_hooks, a list: while it is not empty, no pull is served from `pulled`
                      commit(client, group, topic, queue id, offset), which returns whether it did
                      query(group, topic, queue id), which returns the offset, or a negative number
    frame_bytes   the largest frame
    header_bytes  the largest header
    reply_bytes   `serve` returns when the replies have reached about this size
    """

    def __init__(
        self,
        appender: Appender,
        topics: dict[str, int],
        held: Mapping[tuple[str, int], object],
        pulled: dict[bytes, tuple[QueuePages, list[int]]],
        calls: Any,
        frame_bytes: int,
        header_bytes: int,
        reply_bytes: int,
    ) -> None: ...

    def answer_sends(
        self, suffix: bytes, message_host: bytes, pieces: tuple[bytes, ...], binary_head: bytes, binary_tail: bytes
    ) -> None:
        """Sets what sends are stored and answered with.

        suffix        the last property of each message
        message_host  the start of each message id
        pieces        the JSON header of a reply around its message id, queue id, queue offset and opaque
        binary_head   the binary header of every reply up to its opaque
        binary_tail   the constant fields of a binary reply
        """

    def answer_pulls(self, pieces: tuple[bytes, ...]) -> None:
        """Sets the JSON header of a reply to a pull around its next, lowest and highest offset and its opaque."""

    def answer_offsets(self, query: tuple[bytes, ...], commit: tuple[bytes, ...]) -> None:
        """Sets the JSON headers of replies: to a query around offset and opaque, to a commit around its opaque."""

    def serve(
        self, client: object, data: bytes, at: int, born_host: bytes, takes_sends: bool, room: int = -1
    ) -> tuple[int, int, list[bytes], Exception | None, Exception | None]:
        """Serves the frames of `data` from `at` on, up to the first one that it leaves, or that is not complete.

        client       passed to `calls`
        born_host    the client's host in its 8 or 20 bytes
        takes_sends  whether sends are served at all
        room         how many replies to sends may wait until the messages are safe: they go to `calls.when_safe`, and
                     further sends are left; -1: replies to sends do not wait. The reply to a batch counts as one more
                     for each 2 KiB of message ids

        Returns (at, stop, replies, failure, late): the place of the first frame that was not served; where that frame
        ends if it must be served in another way, else `at`; the frames of the replies, in pieces; what was raised while
        that frame was served, or None: it has failed and must not be served again; and what one of `calls` raised after
        the frames before it were served, or None: it concerns no frame. With about `reply_bytes` of replies it returns
        early.
        """
        return at, at, [], None, None
