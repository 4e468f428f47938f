"""Sending: codes 10, 310 and 320.

A message goes into the log on the loop's thread, which takes microseconds; under SYNC_FLUSH its reply waits for the
disk in `flow`, not here. Its properties stay the text that they came as, with `CLUSTER` behind it, unless something in
them is to be acted on: a delay, a transaction, `WAIT=false`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from penstock.broker.flow import UnflushedSends
from penstock.broker.hold import HeldPulls
from penstock.broker.hooks import Hooks, SendContext
from penstock.broker.peer_hosts import PeerHosts
from penstock.broker.property_text import plain_text
from penstock.broker.put_reply import STORED, PutReplies
from penstock.broker.send_batch import int_of, messages_of
from penstock.broker.send_check import SendChecks
from penstock.broker.send_reply import SendReplyFrames
from penstock.broker.settings import BrokerSettings, SettingsInForce
from penstock.broker.tally import Tally
from penstock.broker.topic_table import TopicTable
from penstock.errors import BadMessage
from penstock.format.config_tables import TopicConfig
from penstock.format.constants import CLUSTER, DELAY, HALF_TOPIC, RETRY_PREFIX, TRAN_MSG, WAIT
from penstock.format.properties import split_properties
from penstock.format.sys_flag import MULTI_TAGS
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import ONE_WAY, RESPONSE, Command
from penstock.protocol.headers.send import SendMessage, SendMessageV2
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal
from penstock.store.message import Message
from penstock.store.status import PutStatus
from penstock.store.store import MessageStore

HalfMessage = Callable[[Message], Message]
"""Turns a transactional message, its properties in a dict, into the half message that is stored in its place."""

_MULTI_TAG = "MULTI_TAG"


class Sends:
    """Stores what producers send."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        checks: SendChecks,
        settings: SettingsInForce,
        unflushed: UnflushedSends,
        held: HeldPulls,
        hooks: Hooks,
        tally: Tally,
        make_half: HalfMessage | None = None,
    ) -> None:
        self._store = store
        self._checks = checks
        self._settings = settings
        self._unflushed = unflushed
        self._held = held
        self._hooks = hooks
        self._tally = tally
        self._make_half = make_half
        self._waits_for_disk = unflushed.is_needed
        self._replies = PutReplies(store)
        self._hosts = PeerHosts()
        self._plain: dict[str, int] = {}
        """Topics that have passed all checks and need no care, with their number of queues."""
        topics.on_change.append(self._plain.clear)
        settings.on_change.append(self._settings_changed)
        self._settings_changed(settings.now)

    def handlers(self) -> dict[RequestCode, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self._send_v1,
            RequestCode.SEND_MESSAGE_V2: self._send_v2,
            RequestCode.SEND_BATCH_MESSAGE: self._send_v2,
        }

    def _settings_changed(self, settings: BrokerSettings) -> None:
        self._plain.clear()
        self._cluster = settings.broker_cluster_name
        self._suffix = f"{CLUSTER}\x01{self._cluster}"
        self._always = {"MSG_REGION": settings.region_id, "TRACE_ON": str(settings.trace_on).lower()}
        self._frames = SendReplyFrames(self._always)

    def _send_v1(self, connection: Connection, command: Command) -> Command | bytes | None:
        return self._send(connection, command, command.read(SendMessage))

    def _send_v2(self, connection: Connection, command: Command) -> Command | bytes | None:
        return self._send(connection, command, command.read(SendMessageV2))

    def _send(self, connection: Connection, command: Command, header: SendMessage) -> Command | bytes | None:
        topic = header.topic
        queues = self._plain.get(topic)
        if queues is None or not 0 <= header.queue_id < queues or self._hooks.send:
            return self._send_with_care(connection, command, header)
        if header.batch:
            return self._send_batch(connection, command, header)
        text = plain_text(header.properties, self._suffix)
        if text is None:
            return self._send_with_care(connection, command, header)
        if self._waits_for_disk and self._unflushed.has_too_many(connection):
            return self._too_many(command)
        body = command.body
        message = Message(
            topic,
            body,  # type: ignore[arg-type]  # a request's body is bytes
            (),
            "",
            None,
            header.queue_id,
            0,
            header.flag,
            header.sys_flag,
            header.born_timestamp,
            self._hosts[connection],
            "",
            header.reconsume_times,
            0,
            True,
            text,
        )
        result = self._store.append(message)
        if result.status is not PutStatus.PUT_OK:
            return self._replies.refused(command, result, self._always)
        self._tally.count_sent(topic, 1, result.size)
        if self._waits_for_disk and not command.flag & ONE_WAY:  # a slave is sent it before consumers are looked for
            msg_id = self._replies.msg_id(result.physical_offset)
            reply = self._stored(command, msg_id, result.queue_id, result.queue_offset)
            self._unflushed.add(connection, result.end_offset, reply)
            self._held.stored(topic, result.queue_id)
            return None
        self._held.stored(topic, result.queue_id)
        if command.flag & ONE_WAY:
            return None
        msg_id = self._replies.msg_id(result.physical_offset)
        if command.binary:
            return self._stored(command, msg_id, result.queue_id, result.queue_offset)
        return self._frames.frame(command.opaque, msg_id, result.queue_id, result.queue_offset)

    def _send_batch(self, connection: Connection, command: Command, header: SendMessage) -> Command | bytes | None:
        """A batch for a topic that needs no care."""
        if self._waits_for_disk and self._unflushed.has_too_many(connection):
            return self._too_many(command)
        try:
            reply, end_offset = self._put_batch(connection, command, header, header.queue_id, header.sys_flag)
        except BadMessage as error:
            reply, end_offset = command.reply(ResponseCode.MESSAGE_ILLEGAL, str(error), self._always), 0
        return self._answered(connection, command, reply, end_offset)

    # -- with care -------------------------------------------------------------------------------------------

    def _send_with_care(self, connection: Connection, command: Command, header: SendMessage) -> Command | None:
        started = time.perf_counter()
        context: SendContext | None = None
        end_offset = 0
        try:
            topic = self._checks.topic_for(header)
            queues = max(topic.read_queue_nums, topic.write_queue_nums)
            self._checks.queue_of(header, queues)
            if self._waits_for_disk and self._unflushed.has_too_many(connection):
                return self._too_many(command)
            if topic.filter_type != _MULTI_TAG and not topic.name.startswith(RETRY_PREFIX):
                self._plain[topic.name] = queues
            queue_id = header.queue_id if header.queue_id >= 0 else random.randrange(max(1, topic.write_queue_nums))
            if self._hooks.send:
                context = self._context(connection, command, header, queue_id)
                self._hooks.before_send(context)
            if header.batch:
                sys_flag = header.sys_flag | (MULTI_TAGS if topic.filter_type == _MULTI_TAG else 0)
                reply, end_offset = self._put_batch(connection, command, header, queue_id, sys_flag)
            else:
                message = self._message(connection, command, header, topic, queue_id)
                told = queue_id if message.topic == HALF_TOPIC else message.queue_id
                reply, end_offset = self._put(command, message, told)
        except Refusal as refusal:
            reply = command.reply(refusal.code, str(refusal), self._always)
        except BadMessage as error:
            reply = command.reply(ResponseCode.MESSAGE_ILLEGAL, str(error), self._always)
        if context is not None:
            context.took_ms = (time.perf_counter() - started) * 1000
            self._tell_hooks(context, reply)
        return self._answered(connection, command, reply, end_offset)

    def _answered(self, connection: Connection, command: Command, reply: Command, end_offset: int) -> Command | None:
        """The reply, unless it must wait for the disk or is not wanted."""
        if command.flag & ONE_WAY:
            return None
        if self._waits_for_disk and end_offset:
            self._unflushed.add(connection, end_offset, reply)
            return None
        return reply

    def _message(
        self, connection: Connection, command: Command, header: SendMessage, topic: TopicConfig, queue_id: int
    ) -> Message:
        """What is stored for a send whose properties say more than what is to be kept."""
        properties = split_properties(header.properties)
        name = topic.name
        if name.startswith(RETRY_PREFIX):
            dead_letter = self._checks.dead_letter_for(header, command.version)
            if dead_letter is not None:
                name, queue_id = dead_letter.name, 0
                properties.pop(DELAY, None)
        waits = properties.pop(WAIT, "true").lower() == "true"
        message = Message(
            name,
            bytes(command.body),
            properties={**properties, CLUSTER: self._cluster},
            queue_id=queue_id,
            flag=header.flag,
            sys_flag=header.sys_flag | (MULTI_TAGS if topic.filter_type == _MULTI_TAG else 0),
            born_timestamp=header.born_timestamp,
            born_host=self._hosts[connection],
            reconsume_times=header.reconsume_times,
            wait=waits,
        )
        is_half = properties.get(TRAN_MSG, "").lower() == "true"
        if is_half and not (header.reconsume_times > 0 and int_of(properties.get(DELAY, "0")) > 0):
            return self._half(message)
        return message

    def _half(self, message: Message) -> Message:
        if self._settings.now.reject_transaction_message or self._make_half is None:
            why = "this broker takes no transactional messages (rejectTransactionMessage)"
            raise Refusal(ResponseCode.NO_PERMISSION, why)
        return self._make_half(message)

    def _put(self, command: Command, message: Message, queue_id: int) -> tuple[Command, int]:
        """The reply, with the queue as its client knows it, and how far the log must be on disk; 0 if it need not."""
        result = self._store.append(message)
        if result.status not in STORED:
            return self._replies.refused(command, result, self._always), 0
        self._tally.count_sent(message.topic, 1, result.size)
        self._held.stored(message.topic, message.queue_id)
        reply = self._stored(command, self._replies.msg_id(result.physical_offset), queue_id, result.queue_offset)
        return reply, result.end_offset if message.wait else 0

    def _put_batch(
        self, connection: Connection, command: Command, header: SendMessage, queue_id: int, sys_flag: int
    ) -> tuple[Command, int]:
        messages = messages_of(
            header,
            bytes(command.body),
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_host=self._hosts[connection],
            cluster=self._cluster,
            max_size=self._store.settings.max_message_size,
        )
        batch = self._store.append_many(messages)
        if batch.status not in STORED:
            return self._replies.refused(command, batch, self._always), 0
        results = batch.results
        self._tally.count_sent(header.topic, len(results), results[-1].end_offset - results[0].physical_offset)
        self._held.stored(header.topic, queue_id)
        ids = self._replies.msg_ids([result.physical_offset for result in results])
        return self._stored(command, ids, queue_id, results[0].queue_offset), results[-1].end_offset

    # -- answering -------------------------------------------------------------------------------------------

    def _stored(self, command: Command, msg_id: str, queue_id: int, queue_offset: int) -> Command:
        told = {"msgId": msg_id, "queueId": str(queue_id), "queueOffset": str(queue_offset), **self._always}
        return Command(ResponseCode.SUCCESS, told, b"", command.opaque, RESPONSE, None, binary=command.binary)

    def _too_many(self, command: Command) -> Command:
        why = "too many sends of this connection wait for the disk (maxUnflushedSends); wait for their answers"
        return command.reply(ResponseCode.SYSTEM_BUSY, why, self._always)

    def _context(self, connection: Connection, command: Command, header: SendMessage, queue_id: int) -> SendContext:
        return SendContext(
            producer_group=header.producer_group,
            topic=header.topic,
            queue_id=queue_id,
            property_text=header.properties,
            body_size=len(command.body),
            born_host=self._hosts[connection],
            born_timestamp=header.born_timestamp,
            store_host=self._store.settings.store_host,
            region=self._settings.now.region_id,
            request_timestamp=time.time_ns() // 1_000_000,
            batch=header.batch,
        )

    def _tell_hooks(self, context: SendContext, reply: Command) -> None:
        context.code, context.remark = reply.code, reply.remark
        context.msg_id = reply.ext.get("msgId", "")
        context.queue_offset = int(reply.ext.get("queueOffset", "-1"))
        self._hooks.after_send(context)
