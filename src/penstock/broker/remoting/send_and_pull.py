"""Remoting handlers of sends, pulls, queries, offsets and transactions.

Here are the protocol's peculiarities that the core need not know: V1 and V2 sends, fields that old clients fill with
rubbish, one-way requests, the two fields that every reply to a send carries, and the encoded frames of the most
frequent replies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from penstock.broker.operations_as_plain_calls import Call, Core, Deferred, Denied, Operation
from penstock.broker.query import FoundMessages
from penstock.broker.remoting.adapt_operations import OperationRoute, handlers_of
from penstock.broker.remoting.reply_frames import SendReplyFrames, pull_reply_head
from penstock.broker.send_and_pull_results import PullOutcome, SendOutcome
from penstock.broker.settings import BrokerSettings, SettingsInForce
from penstock.protocol import fields
from penstock.protocol.codes import Refusal, RequestCode
from penstock.protocol.command import ONE_WAY, RESPONSE, Command
from penstock.protocol.fields import Fields
from penstock.protocol.headers.groups import SendBack
from penstock.protocol.headers.pull import PullMessage, QueryMessage
from penstock.protocol.headers.send import EndTransaction, ResumeCheck, SendMessage, SendMessageV2
from penstock.protocol.versions import V3_4_9
from penstock.remoting.connection import Connection
from penstock.remoting.handler_types_and_errors import Handler, Result, failed

_ROUTES: Final = {
    RequestCode.QUERY_CONSUMER_OFFSET: OperationRoute("query offset"),
    RequestCode.UPDATE_CONSUMER_OFFSET: OperationRoute("commit offset"),
    RequestCode.GET_MAX_OFFSET: OperationRoute("max offset"),
    RequestCode.GET_MIN_OFFSET: OperationRoute("min offset"),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: OperationRoute("search offset"),
    RequestCode.GET_EARLIEST_MSG_STORETIME: OperationRoute("earliest time"),
    RequestCode.VIEW_MESSAGE_BY_ID: OperationRoute("view"),
}


def message_handlers(core: Core, settings: SettingsInForce) -> dict[int, Handler]:
    """Returns the handlers of this module's request codes, by code."""
    replies = SendReplies(settings)
    send, send_reply, pull = core.find("send").call, core.find("send reply").call, _pull(core.find("pull").call)
    return {
        **handlers_of(core, _ROUTES),
        RequestCode.SEND_MESSAGE: _send(send, SendMessage, replies),
        RequestCode.SEND_MESSAGE_V2: _send(send, SendMessageV2, replies),
        RequestCode.SEND_BATCH_MESSAGE: _send(send, SendMessageV2, replies),
        RequestCode.SEND_REPLY_MESSAGE: _send_reply(send_reply, SendMessage, replies),
        RequestCode.SEND_REPLY_MESSAGE_V2: _send_reply(send_reply, SendMessageV2, replies),
        RequestCode.CONSUMER_SEND_MSG_BACK: _put(core.find("send back"), SendBack),
        RequestCode.END_TRANSACTION: _put(core.find("end transaction"), EndTransaction),
        RequestCode.RESUME_CHECK_HALF_MESSAGE: _put(core.find("resume check"), ResumeCheck),
        RequestCode.PULL_MESSAGE: pull,
        RequestCode.LITE_PULL_MESSAGE: pull,
        RequestCode.QUERY_MESSAGE: _query(core.find("query").call),
    }


def _answer_later(
    deferred: Deferred[Any], connection: Connection, command: Command, encode: Callable[[Command, Any], Command]
) -> None:
    """Sends the reply once the outcome is there. The request's arguments and body are not kept until then."""
    command = command.stub()

    def answer(outcome: Any) -> None:
        connection.send(failed(command, outcome) if isinstance(outcome, Exception) else encode(command, outcome))

    deferred.then(answer)


async def _answer_cold(
    outcome: Awaitable[Any], connection: Connection, command: Command, encode: Callable[[Command, Any], Command]
) -> Command | None:
    """Answers a request that waits for the disk. Its outcome may be deferred even then."""
    found = await outcome
    if not isinstance(found, Deferred):
        return encode(command, found)
    _answer_later(found, connection, command, encode)
    return None


# -- sends ---------------------------------------------------------------------------------------------------


def fields_of_every_send(settings: BrokerSettings) -> dict[str, str]:
    """Returns the fields that each reply to a send has, refusals too."""
    return {"MSG_REGION": settings.region_id, "TRACE_ON": str(settings.trace_on).lower()}


class SendReplies:
    """Replies to sends. Each of them, refusals too, has the broker's region and whether clients should trace."""

    def __init__(self, settings: SettingsInForce) -> None:
        settings.on_change.append(self._on_settings)
        self._on_settings(settings.now)

    def _on_settings(self, settings: BrokerSettings) -> None:
        self._always = fields_of_every_send(settings)
        self.frame = SendReplyFrames(self._always).frame

    def reply(self, command: Command, outcome: SendOutcome) -> Command:
        place = {"queueId": str(outcome.queue_id), "queueOffset": str(outcome.queue_offset)}
        ext = {"msgId": outcome.msg_id, **place, **self._always}
        return Command(outcome.code, ext, b"", command.opaque, RESPONSE, outcome.remark, binary=command.binary)

    def refuse(self, command: Command, refusal: Refusal) -> Command:
        """Returns the reply to a send that the broker refused. Raises a refusal of a guard again: it has no fields."""
        if isinstance(refusal, Denied):
            raise refusal
        return command.reply(refusal.code, str(refusal), self._always)


def _send(call: Call, kind: type[SendMessage], replies: SendReplies) -> Handler:
    def send(connection: Connection, command: Command) -> Command | bytes | None:
        request, answered = command.read(kind), not command.flag & ONE_WAY
        if command.version < V3_4_9:
            request.max_reconsume_times = None  # older clients send a number that means nothing
        try:
            outcome = call(connection, request, command.body, answered)
        except Refusal as refusal:
            return replies.refuse(command, refusal)
        if not answered:
            return None
        if type(outcome) is not SendOutcome:
            _answer_later(outcome, connection, command, replies.reply)
            return None
        if command.binary or outcome.code:
            return replies.reply(command, outcome)
        return replies.frame(command.opaque, outcome.msg_id, outcome.queue_id, outcome.queue_offset)

    return send


def _send_reply(call: Call, kind: type[SendMessage], replies: SendReplies) -> Handler:
    async def answer(command: Command, outcome: Awaitable[SendOutcome]) -> Command:
        try:
            return replies.reply(command, await outcome)
        except Refusal as refusal:
            return replies.refuse(command, refusal)

    return lambda connection, command: answer(command, call(connection, command.read(kind), command.body))


def _put(operation: Operation, kind: type[Fields]) -> Handler:
    """Returns the handler of an operation that stores a message, but does not tell the client where."""
    call, admit = operation.call, operation.admit

    def put(connection: Connection, command: Command) -> Result:
        if admit is not None:
            admit(connection)
        request = command.read(kind)
        if isinstance(request, SendBack) and command.version < V3_4_9:
            request.max_reconsume_times = None
        outcome = call(connection, request, not command.flag & ONE_WAY)
        if isinstance(outcome, SendOutcome):
            return _bare(command, outcome)
        if not isinstance(outcome, Deferred):
            return _answer_cold(outcome, connection, command, _bare)
        _answer_later(outcome, connection, command, _bare)
        return None

    return put


def _bare(command: Command, outcome: SendOutcome) -> Command:
    return command.reply(outcome.code, outcome.remark)


# -- pulls and queries ---------------------------------------------------------------------------------------


def _pull(call: Call) -> Handler:
    def pull(connection: Connection, command: Command) -> Result:
        outcome = call(connection, command.read(PullMessage))
        if type(outcome) is not PullOutcome:
            if not isinstance(outcome, Deferred):
                return _answer_cold(outcome, connection, command, _pull_reply)
            _answer_later(outcome, connection, command, _pull_reply)
            return None
        if outcome.code or outcome.broker_id or command.binary:
            return _pull_reply(command, outcome)
        page = outcome.page
        bounds = page.next_begin_offset, page.min_offset, page.max_offset
        return pull_reply_head(command.opaque, *bounds, len(page.data)), page.data

    return pull


def _pull_reply(command: Command, outcome: PullOutcome) -> Command:
    page = outcome.page
    bounds = {
        "suggestWhichBrokerId": str(outcome.broker_id),
        "nextBeginOffset": str(outcome.next_begin_offset),
        "minOffset": str(page.min_offset),
        "maxOffset": str(page.max_offset),
    }
    return Command(outcome.code, bounds, page.data, command.opaque, RESPONSE, page.status.name, binary=command.binary)


def _query(call: Call) -> Handler:
    async def answer(command: Command, outcome: Awaitable[FoundMessages]) -> Command:
        found = await outcome
        ext, body = fields.write(found.index_end), b"".join(found.records)
        why = None if found.records else "no such message in this time range, or not indexed yet"
        return command.reply(found.code, why, ext, body)

    return lambda connection, command: answer(command, call(connection, command.read(QueryMessage)))
