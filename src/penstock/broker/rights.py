"""Which rights a request needs: by its code, and the topic and group that it names.

Sending needs PUB on the topic; pulling SUB on the topic and on the group; what a group does otherwise SUB on the group.
A retry topic belongs to its group. Whatever is not among the requests of ordinary clients is administration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from penstock.broker.accounts import ANY, PUB, SUB
from penstock.broker.system_topics import REPLY_TOPIC_SUFFIX
from penstock.format.constants import HALF_TOPIC, REAL_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC
from penstock.format.record import Record
from penstock.protocol.bodies.heartbeat import CheckClientRequestBody, HeartbeatData
from penstock.protocol.bodies.locks import LockBatchRequestBody
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import groups, offsets
from penstock.protocol.headers.pull import PullMessage
from penstock.protocol.headers.query import QueryMessage, ViewMessage
from penstock.protocol.headers.send import SendMessage, SendMessageV2
from penstock.protocol.headers.transactions import EndTransaction

LookUp = Callable[[int], Record | None]
"""The record at a physical offset."""


class Need(NamedTuple):
    """One of these rights, on a topic or on a group."""

    rights: int
    topic: str = ""
    group: str = ""

    def __str__(self) -> str:
        what = f"group '{self.group}'" if self.group else f"topic '{self.topic}'"
        return f"{'PUB or SUB' if self.rights == ANY else 'PUB' if self.rights == PUB else 'SUB'} on {what}"


def _topic(name: str, rights: int) -> Need:
    """A retry topic is its group's, whatever is done with it."""
    if name.startswith(RETRY_PREFIX):
        return Need(SUB, group=name.removeprefix(RETRY_PREFIX))
    return Need(rights, topic=name)


def _send(command: Command, look_up: LookUp) -> Iterator[Need]:
    yield _topic(command.read(SendMessage).topic, PUB)


def _send_v2(command: Command, look_up: LookUp) -> Iterator[Need]:
    yield _topic(command.read(SendMessageV2).topic, PUB)


def _answer(command: Command, look_up: LookUp) -> Iterator[Need]:
    """Answers go through the cluster's reply topic, which is everybody's."""
    kind = SendMessage if command.code == RequestCode.SEND_REPLY_MESSAGE else SendMessageV2
    topic = command.read(kind).topic
    if not topic.endswith(REPLY_TOPIC_SUFFIX):
        yield _topic(topic, PUB)


def _pull(command: Command, look_up: LookUp) -> Iterator[Need]:
    header = command.read(PullMessage)
    yield _topic(header.topic, SUB)
    yield Need(SUB, group=header.consumer_group)


def _queue(command: Command, look_up: LookUp) -> Iterator[Need]:
    yield _topic(command.read(offsets.GetMinOffset).topic, ANY)


def _offset(command: Command, look_up: LookUp) -> Iterator[Need]:
    header = command.read(offsets.QueryConsumerOffset)
    yield _topic(header.topic, SUB)
    yield Need(SUB, group=header.consumer_group)


def _send_back(command: Command, look_up: LookUp) -> Iterator[Need]:
    """The message itself is copied, so it must be one that the account may read."""
    header = command.read(groups.SendBack)
    yield Need(SUB, group=header.group)
    yield from _record(look_up(header.offset))


def _locks(command: Command, look_up: LookUp) -> Iterator[Need]:
    yield Need(SUB, group=LockBatchRequestBody.from_bytes(command.body).consumer_group)


def _heartbeat(command: Command, look_up: LookUp) -> Iterator[Need]:
    for consumer in HeartbeatData.from_bytes(command.body).consumer_data_set:
        yield Need(SUB, group=consumer.group_name)
        for subscription in consumer.subscription_data_set:
            yield _topic(subscription.topic, SUB)


def _unregister(command: Command, look_up: LookUp) -> Iterator[Need]:
    group = command.read(groups.UnregisterClient).consumer_group
    if group:
        yield Need(SUB, group=group)


def _members(command: Command, look_up: LookUp) -> Iterator[Need]:
    yield Need(SUB, group=command.read(groups.ConsumerGroup).consumer_group)


def _check_client(command: Command, look_up: LookUp) -> Iterator[Need]:
    body = CheckClientRequestBody.from_bytes(command.body)
    yield Need(SUB, group=body.group)
    yield _topic(body.subscription_data.topic, SUB)


def _end_transaction(command: Command, look_up: LookUp) -> Iterator[Need]:
    half = look_up(command.read(EndTransaction).commit_log_offset)
    if half is not None and half.topic == HALF_TOPIC:
        yield _topic(half.properties.get(REAL_TOPIC, ""), PUB)


def _query(command: Command, look_up: LookUp) -> Iterator[Need]:
    yield _topic(command.read(QueryMessage).topic, SUB)


def _view(command: Command, look_up: LookUp) -> Iterator[Need]:
    yield from _record(look_up(command.read(ViewMessage).offset))


def _record(record: Record | None) -> Iterator[Need]:
    """Reading a message needs SUB on its topic, or on the one that it waits for."""
    if record is not None:
        waits = record.topic in (HALF_TOPIC, SCHEDULE_TOPIC)
        yield _topic(record.properties.get(REAL_TOPIC, record.topic) if waits else record.topic, SUB)


_NEEDS: Final[dict[int, Callable[[Command, LookUp], Iterator[Need]]]] = {
    RequestCode.SEND_MESSAGE: _send,
    RequestCode.SEND_MESSAGE_V2: _send_v2,
    RequestCode.SEND_BATCH_MESSAGE: _send_v2,
    RequestCode.SEND_REPLY_MESSAGE: _answer,
    RequestCode.SEND_REPLY_MESSAGE_V2: _answer,
    RequestCode.PULL_MESSAGE: _pull,
    RequestCode.LITE_PULL_MESSAGE: _pull,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _queue,
    RequestCode.GET_MAX_OFFSET: _queue,
    RequestCode.GET_MIN_OFFSET: _queue,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _queue,
    RequestCode.QUERY_CONSUMER_OFFSET: _offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: _offset,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _members,
    RequestCode.CHECK_CLIENT_CONFIG: _check_client,
    RequestCode.END_TRANSACTION: _end_transaction,
    RequestCode.QUERY_MESSAGE: _query,
    RequestCode.VIEW_MESSAGE_BY_ID: _view,
}


def is_administration(code: int) -> bool:
    """Whether a request is no ordinary client's."""
    return code not in _NEEDS


def needs(command: Command, look_up: LookUp) -> Iterator[Need]:
    """What an ordinary client's request needs, all of it. Raises BadRequest."""
    return _NEEDS[command.code](command, look_up)
