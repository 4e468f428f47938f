"""Pulls: messages of a queue for a consumer.

A pull is checked, commits its offset if it asks to, and reads from the queue. At the queue's end it may be held
(`long_polling`) and run again later. Every outcome carries the next offset and the queue's lowest and highest offset.
`SlaveReads` decides which broker a consumer should pull from next. `MovedOffsets` records that a consumer's offset was
corrected. Use everything here from the loop's thread only.

The loop does not wait for the disk. If a page is not in memory, a thread of the store reads it, one page at a time for
each client, and the outcome comes afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec

from penstock.broker.consumers import sql_compiler
from penstock.broker.filters import ALL, RecordFilter, Selection, SqlCompiler, by_tags
from penstock.broker.long_polling import HeldPull, HeldPulls
from penstock.broker.operations_as_plain_calls import Client, Operation, host_text
from penstock.broker.send_and_pull_results import PullOutcome
from penstock.broker.settings import SettingsInForce
from penstock.broker.table_persistence import BrokerState
from penstock.broker.topics import OFFSET_MOVED_TOPIC, is_system_group
from penstock.broker.user_hooks_for_send_and_pull import ConsumeContext
from penstock.errors import BadRequest, PenstockError
from penstock.format import kernels
from penstock.format.config_tables import SubscriptionGroup
from penstock.protocol.bodies.clients import MessageModel
from penstock.protocol.bodies.queues import MessageQueue, OffsetMovedEvent
from penstock.protocol.bodies.routes import PERM_READ
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.pull import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullMessage
from penstock.protocol.subscription import TAG, SubscriptionData, subscribe
from penstock.protocol.table_memory_limits import entry_bytes
from penstock.rate_limited_log import RateLimitedLog
from penstock.store.cold_reads import ColdRead
from penstock.store.files.file_io import NotResident
from penstock.store.message import EVERYTHING, GetStatus, Message, Page
from penstock.store.message_store import MessageStore

log = logging.getLogger("penstock.broker")

_MASTER: Final = 0


class SlaveReads:
    """Which broker a consumer should pull from next: the master, or a slave while the consumer is far behind.

    With slaveReadEnable, a master suggests the group's `whichBrokerWhenConsumeSlowly` while the consumer's messages are
    probably no longer in memory. A slave serves every pull, as RocketMQ's slaves do. `follows` returns whether this
    slave is connected to its master; it is None on a master.
    """

    def __init__(
        self, settings: SettingsInForce, follows: Callable[[], bool] | None = None, *, corrects: bool = True
    ) -> None:
        self._settings = settings
        self._follows = follows
        self.corrects = corrects or follows is None
        """Whether an offset outside the queue is corrected. A master always does; a slave only with offsetCheckInSlave,
        because its master may have more messages."""

    @property
    def suggests(self) -> bool:
        """Whether answers may suggest a broker other than the master."""
        return self._settings.now.slave_read_enable

    @property
    def accepts_commits(self) -> bool:
        """Whether a pull may commit an offset: not on a slave that follows, which copies its master's offsets."""
        return self._follows is None or not self._follows()

    def suggested(self, group: SubscriptionGroup | None, page: Page) -> int:
        """Returns the id of the broker to pull from next."""
        if group is None or not self._settings.now.slave_read_enable:
            return _MASTER
        return group.which_broker_when_consume_slowly if page.suggest_slave else group.broker_id


SPAN_MS: Final = 60_000
MAX_IN_A_SPAN: Final = 1_000


class MovedOffsets:
    """Stores a message in OFFSET_MOVED_EVENT when a pull was answered with another offset than it asked for.

    That happens when the messages at the group's offset were deleted, or when the offset was never valid. The message
    is RocketMQ's: JSON with the group, the queue and both offsets; tag and key are the group. A consumer may ask again
    and again, so the messages are limited: one per queue, group and minute, and MAX_IN_A_SPAN per minute in all. A
    restart forgets the counts.
    """

    def __init__(self, store: MessageStore, settings: SettingsInForce, clock: Callable[[], int]) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._reported: set[tuple[str, str, int]] = set()
        self._span_began = 0

    def report(self, group: str, topic: str, queue_id: int, asked: int, given: int) -> None:
        now = self._clock()
        if not 0 <= now - self._span_began < SPAN_MS:
            self._reported.clear()
            self._span_began = now
        key = (group, topic, queue_id)
        if key in self._reported or len(self._reported) >= MAX_IN_A_SPAN or not self._settings.now.is_writable:
            return
        self._reported.add(key)
        log.warning("offset moved: group=%s topic=%s queue=%d from=%d to=%d", group, topic, queue_id, asked, given)
        queue = MessageQueue(broker_name=self._settings.now.broker_name, queue_id=queue_id, topic=topic)
        event = OffsetMovedEvent(consumer_group=group, message_queue=queue, offset_request=asked, offset_new=given)
        message = Message(
            OFFSET_MOVED_TOPIC,
            event.to_bytes(),
            keys=(group,),
            tags=group,
            queue_id=0,
            born_timestamp=now,
            born_host=self._store.settings.store_host,
        )
        try:
            result = self._store.append(message)
        except PenstockError as error:  # the pull is answered in any case
            log.warning("could not store a message in %s: %s", OFFSET_MOVED_TOPIC, error)
            return
        if not result.stored:
            log.warning("could not store a message in %s: %s", OFFSET_MOVED_TOPIC, result.reason or result.status.value)


_EMPTY: Final = (GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE)
_SCANNED: Final = (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING)
_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
}
_SUCCESS: Final = ResponseCode.SUCCESS  # each look-up in an enum costs as much as the outcome itself
_FOUND: Final = GetStatus.FOUND
_BY_TAG: Final = (None, "", TAG)
_UNKNOWN: Final = (None, 0)
_MAX_PLAIN: Final = 65_536
_HELD_BYTES: Final = 1536
"""What a pull that waits takes besides an entry of a table: its request, timer and closure, or its task."""
_LONGEST_HOLD_S: Final = 300.0


class Pulls:
    """Answers pulls. `held` keeps the pulls that wait for a message."""

    def __init__(
        self, state: BrokerState, held: HeldPulls, moved: MovedOffsets, reads: SlaveReads, compile_sql: SqlCompiler
    ) -> None:
        self._store = state.store
        self._topics = topics = state.topics
        self._groups = groups = state.groups
        self._offsets = state.offsets
        self._clients = state.clients
        self._held = held
        self._settings = settings = state.settings
        self._hooks = state.hooks
        self._counters = state.counters
        self._moved = moved
        self._refusals = RateLimitedLog(log)
        self._reads = reads
        self._compile_sql = compile_sql
        self._plain: dict[tuple[str, str], tuple[SubscriptionGroup, int]] = {}
        """The pairs of topic and group that passed all checks, with the group and the topic's number of read queues.
        Emptied when topics, groups or settings change."""
        self.ordinary_queues: dict[bytes, tuple[kernels.QueuePages, list[int]]] = {}
        """For the compiled request path: the pages of queues that ordinary pulls have read, and the counts of what the
        group got, by the path's own keys. Emptied with `_plain`, and when subscriptions change."""
        topics.on_change.append(self._forget_checked)
        groups.on_change.append(self._forget_checked)
        settings.on_change.append(lambda _: self._forget_checked())
        state.clients.on_subscription.append(self.ordinary_queues.clear)

    def _forget_checked(self) -> None:
        self._plain.clear()
        self.ordinary_queues.clear()

    def operations(self) -> tuple[Operation, ...]:
        return (Operation("pull", self.pull),)

    def pull(self, client: Client, request: PullMessage) -> PullOutcome | HeldPull | Awaitable[PullOutcome | HeldPull]:
        """Reads from a queue; at its end, holds the pull if the client asks for that. Raises Refusal."""
        offset, flags = request.queue_offset, request.sys_flag
        group, queues = self._plain.get((request.topic, request.consumer_group), _UNKNOWN)
        if group is None or not 0 <= request.queue_id < queues:
            group = self._check(client, request)
        selection = self._select(request, group)
        if flags & COMMIT_OFFSET:
            queue = request.consumer_group, request.topic, request.queue_id
            self.commit_pulled(client, *queue, request.commit_offset)
        page = self._get(request, offset, selection)
        if isinstance(page, ColdRead):
            return self._pull_cold(client, request, selection, page)
        if page.status is _FOUND:
            return self._found(client, request, page)
        waits = flags & SUSPEND != 0 and self._is_at_end(page, offset)
        if page.status not in _SCANNED and not waits and self._store.dispatcher.behind > 0:
            if self._store.try_catch_up():  # a pull that is not held must see every acked message
                page = self._get(request, offset, selection)
            else:
                place = request.topic, request.queue_id, offset
                page = ColdRead(partial(self._store.get, *place, max(1, request.max_msg_nums), selection.tags))
            if isinstance(page, ColdRead):
                return self._pull_cold(client, request, selection, page)
        return self._outcome_or_hold(client, request, selection, page)

    def find_ordinary(
        self,
        client: Client,
        key: bytes | None,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        limit: int,
        flags: int,
        commit_offset: int,
        sub_version: int,
    ) -> Page | None:
        """Like `pull`, for a pull without a filter of its own, by the values of its fields.

        Returns None, and changes nothing, unless it is a pull like an earlier one that finds messages in memory. If it
        wants all messages, `ordinary_queues` gets the pages of its queue as `key`: while they are there, pulls with
        this key need no check.
        """
        known, queues = self._plain.get((topic, group), _UNKNOWN)
        if known is None or not 0 <= queue_id < queues or self._hooks.consume or self._reads.suggests:
            return None
        store = self._store
        tags = EVERYTHING
        if not flags & SUBSCRIPTION:
            try:
                subscription = self._subscription(known, topic, sub_version)
            except Refusal:
                return None
            if subscription.expression_type != TAG:
                return None
            try:
                tags = by_tags(subscription.sub_string).tags
            except BadRequest:
                return None
        started = time.perf_counter()
        try:
            page = store.pages.get(topic, queue_id, offset, max(limit, 1), tags, store.watermarks.visible, True)
        except (NotResident, PenstockError):
            return None
        if page.status is not _FOUND:
            return None
        if flags & COMMIT_OFFSET:
            self.commit_pulled(client, group, topic, queue_id, commit_offset)
        if key is not None and tags is EVERYTHING:
            self._keep(key, group, topic, queue_id)
        store.statistics.count_get(page, time.perf_counter() - started)
        self._counters.count_got(topic, group, page.count, len(page.data))
        return page

    def _keep(self, key: bytes, group: str, topic: str, queue_id: int) -> None:
        if len(self.ordinary_queues) >= _MAX_PLAIN:
            self.ordinary_queues.clear()
        pages = self._store.pages.pages_of(topic, queue_id, self._store.watermarks.needs.flushed)
        if pages is not None:
            self.ordinary_queues[key] = pages, self._counters.got[topic, group]

    def commit_pulled(self, client: Client, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commits the offset that came with a pull, if that is allowed."""
        if self._reads.accepts_commits and not is_system_group(group):
            try:
                self._offsets.commit(group, topic, queue_id, offset, client)
            except Refusal as full:  # the consumer gets its messages all the same
                self._refusals.warn(f"the offset of a pull by group '{group}' is not kept: {full}")

    async def _pull_cold(
        self, client: Client, request: PullMessage, selection: Selection, read: ColdRead[Page]
    ) -> PullOutcome | HeldPull:
        page = await self._read_cold(client, selection, read, _cost(request, selection))
        return self._outcome_or_hold(client, request, selection, page)

    def _outcome_or_hold(
        self, client: Client, request: PullMessage, selection: Selection, page: Page
    ) -> PullOutcome | HeldPull:
        if request.sys_flag & SUSPEND and self._is_at_end(page, request.queue_offset):
            return self._hold(client, request, selection)
        return self._outcome(client, request, page)

    # -- checks ----------------------------------------------------------------------------------------------

    def _check(self, client: Client, request: PullMessage) -> SubscriptionGroup:
        """Returns the group of a pull. Raises Refusal if the group may not pull from this queue."""
        if not self._settings.now.is_readable:
            raise Refusal(ResponseCode.NO_PERMISSION, "this broker is not readable (brokerPermission)")
        group = self._groups.find_or_create(request.consumer_group, client)
        if group is None:
            why = f"consumer group '{request.consumer_group}' does not exist"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
        if not group.consume_enable:
            raise Refusal(ResponseCode.NO_PERMISSION, f"consumer group '{group.name}' may not consume")
        topic = self._topics.find(request.topic)
        if topic is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic '{request.topic}' does not exist; create it first")
        if not topic.perm & PERM_READ:
            raise Refusal(ResponseCode.NO_PERMISSION, f"topic '{topic.name}' is not readable")
        if not 0 <= request.queue_id < topic.read_queue_nums:
            why = f"topic '{topic.name}' has {topic.read_queue_nums} queues, and no queue {request.queue_id}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        if len(self._plain) >= _MAX_PLAIN:
            self._plain.clear()
        self._plain[topic.name, group.name] = group, topic.read_queue_nums
        return group

    def _select(self, request: PullMessage, group: SubscriptionGroup) -> Selection:
        """Returns which messages the consumer wants: by the pull's own subscription, or else by its last heartbeat's.

        Raises Refusal.
        """
        if request.sys_flag & SUBSCRIPTION:
            if request.subscription == "*" and request.expression_type in _BY_TAG:
                return ALL
            if not request.subscription or request.subscription == "*":
                subscription_type, expression = request.expression_type or TAG, "*"
            else:
                try:
                    wanted = subscribe(
                        request.topic, request.subscription, request.sub_version, request.expression_type
                    )
                except BadRequest as error:
                    raise Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
                subscription_type, expression = wanted.expression_type, wanted.sub_string
            failure = ResponseCode.SUBSCRIPTION_PARSE_FAILED
        else:
            known = self._subscription(group, request.topic, request.sub_version)
            subscription_type, expression = known.expression_type, known.sub_string
            failure = ResponseCode.FILTER_DATA_NOT_EXIST
        try:
            if subscription_type == TAG:
                return by_tags(expression)
            compile_sql = sql_compiler(self._compile_sql, self._settings)
            return Selection(accepts=compile_sql(expression), sql=expression)
        except BadRequest as error:
            raise Refusal(failure, str(error)) from None

    def _subscription(self, group: SubscriptionGroup, topic: str, sub_version: int) -> SubscriptionData:
        """Returns the subscription of the group's last heartbeat. Raises Refusal."""
        clients = self._clients.consumers(group.name)
        if clients is None:
            why = f"no consumer of group '{group.name}' has sent a heartbeat"
            raise Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, why)
        if clients.message_model is MessageModel.BROADCASTING and not group.consume_broadcast_enable:
            raise Refusal(ResponseCode.NO_PERMISSION, f"consumer group '{group.name}' may not consume by broadcast")
        subscription = clients.subscriptions.get(topic)
        if subscription is None:
            why = f"consumer group '{group.name}' has not subscribed to topic '{topic}'"
            raise Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, why)
        if subscription.sub_version < sub_version:
            why = f"the subscription of group '{group.name}' to topic '{topic}' has not arrived yet"
            raise Refusal(ResponseCode.SUBSCRIPTION_NOT_LATEST, why)
        return subscription

    # -- reading ---------------------------------------------------------------------------------------------

    def _get(self, request: PullMessage, offset: int, selection: Selection) -> Page | ColdRead[Page]:
        """Returns the page of a pull, or a ColdRead if it is not in memory."""
        topic, queue_id, limit = request.topic, request.queue_id, request.max_msg_nums
        if limit < 1:
            limit = 1
        page = self._store.try_get(topic, queue_id, offset, limit, selection.tags)
        if selection.accepts is None or isinstance(page, ColdRead) or page.status is not GetStatus.FOUND:
            return page
        while True:
            page = _filtered(page, selection.accepts)
            examined = page.next_begin_offset - offset
            if page.count or examined >= selection.max_examined or page.next_begin_offset >= page.max_offset:
                return page
            following = self._store.try_get(topic, queue_id, page.next_begin_offset, limit, selection.tags)
            if isinstance(following, ColdRead) or following.status is not GetStatus.FOUND:
                return page
            page = following

    async def _read_cold(self, client: Client, selection: Selection, read: ColdRead[Page], cost: int) -> Page:
        async with self._held.read_turn(client, cost):
            page = await asyncio.wrap_future(self._store.read_cold(read, client))
        if selection.accepts is None or page.status is not GetStatus.FOUND:
            return page
        return _filtered(page, selection.accepts)

    @staticmethod
    def _is_at_end(page: Page, offset: int) -> bool:
        """Whether `offset` is exactly the queue's end, so that the pull may wait for the next message."""
        if page.status in _EMPTY:
            return offset == 0
        return page.status is GetStatus.OFFSET_OVERFLOW_ONE

    # -- long polling ----------------------------------------------------------------------------------------

    def _hold(self, client: Client, request: PullMessage, selection: Selection) -> HeldPull:
        settings = self._settings.now
        if self._held.count_of(client) >= settings.max_held_pulls:
            why = f"{settings.max_held_pulls} pulls of this connection wait already (maxHeldPulls)"
            raise Refusal(ResponseCode.SYSTEM_BUSY, why)
        millis = request.suspend_timeout_millis if settings.long_polling_enable else settings.short_polling_time_mills

        def run(held: HeldPull, is_last: bool) -> bool:
            try:
                page = self._get(request, held.offset, selection)
            except Exception as error:  # nothing else would settle this held pull
                held.settle(error)
                return True
            if isinstance(page, ColdRead):
                self._held.settle_later(held, self._cold_outcome(held, request, selection, page))
                return True
            if not is_last:
                if page.status is GetStatus.NO_MATCHED_MESSAGE and page.next_begin_offset >= page.max_offset:
                    held.offset = page.next_begin_offset
                    return False  # else the client asks again at once: what it wants may be here already
                if self._is_at_end(page, held.offset):
                    return False
            if page.status is GetStatus.OFFSET_OVERFLOW_ONE and held.offset > request.queue_offset:
                page = msgspec.structs.replace(page, status=GetStatus.NO_MATCHED_MESSAGE)
            held.settle(self._outcome(client, request, page))
            return True

        place = request.topic, request.queue_id, request.queue_offset
        pull = HeldPull(client, *place, selection, run, _cost(request, selection))
        self._held.hold(pull, min(max(millis, 0) / 1000, _LONGEST_HOLD_S))
        return pull

    async def _cold_outcome(
        self, held: HeldPull, request: PullMessage, selection: Selection, read: ColdRead[Page]
    ) -> PullOutcome:
        """The outcome of a held pull whose page is not in memory. It is not held again, even if no message matches."""
        page = await self._read_cold(held.client, selection, read, held.cost)
        return self._outcome(held.client, request, page)

    # -- outcomes --------------------------------------------------------------------------------------------

    def _outcome(self, client: Client, request: PullMessage, page: Page) -> PullOutcome:
        if page.status is _FOUND:
            return self._found(client, request, page)
        code, next_offset = _CODES[page.status], page.next_begin_offset
        if page.status in _EMPTY and request.queue_offset != 0:
            code = ResponseCode.PULL_OFFSET_MOVED
        if code is ResponseCode.PULL_OFFSET_MOVED and not self._reads.corrects:
            code, next_offset = ResponseCode.PULL_RETRY_IMMEDIATELY, request.queue_offset
        if code is ResponseCode.PULL_OFFSET_MOVED:
            queue = request.consumer_group, request.topic, request.queue_id
            self._moved.report(*queue, request.queue_offset, page.next_begin_offset)
        return PullOutcome(code, page, next_offset, self._suggested(request, page))

    def _found(self, client: Client, request: PullMessage, page: Page) -> PullOutcome:
        self._counters.count_got(request.topic, request.consumer_group, page.count, len(page.data))
        if self._hooks.consume:
            self._call_before_consume(client, request, page)
        broker_id = self._suggested(request, page) if self._reads.suggests else _MASTER
        return PullOutcome(_SUCCESS, page, page.next_begin_offset, broker_id)

    def _suggested(self, request: PullMessage, page: Page) -> int:
        return self._reads.suggested(self._groups.find(request.consumer_group), page)

    def _call_before_consume(self, client: Client, request: PullMessage, page: Page) -> None:
        self._hooks.before_consume(
            ConsumeContext(
                consumer_group=request.consumer_group,
                topic=request.topic,
                queue_id=request.queue_id,
                client_host=host_text(*client.peer),
                store_host=self._store.settings.store_host,
                count=page.count,
                size=len(page.data),
                next_begin_offset=page.next_begin_offset,
            )
        )


def _cost(request: PullMessage, selection: Selection) -> int:
    """Returns an estimate of the memory that a pull takes while it waits."""
    texts = request.topic, request.consumer_group, request.expression_type or "", request.subscription or ""
    return _HELD_BYTES + selection.memory + entry_bytes(*texts)


def _filtered(page: Page, accepts: RecordFilter) -> Page:
    """Returns the page with only those messages that an SQL92 filter selects."""
    kept = [record for record in page.records if accepts(record)]
    if kept:
        return msgspec.structs.replace(page, data=b"".join(kept), count=len(kept))
    return msgspec.structs.replace(page, status=GetStatus.NO_MATCHED_MESSAGE, data=b"", count=0)
