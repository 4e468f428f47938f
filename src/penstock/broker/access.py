"""Access control: who may send which request.

Without it (`aclEnable=false`), every client may send and consume, but only this machine may administer (`local_only`);
ordinary requests are not checked at all. With it, every request, even from this machine, must be signed by an account
of the access file (`aclFile`) that has the rights for it. Addresses in the file's white lists need no account, as in
RocketMQ. The broker checks once a second whether the file has changed. A file that cannot be used is logged, and the
accounts stay unchanged. A refused request gets SYSTEM_ERROR with the reason, as from a 4.x broker. No secret is ever
logged or sent.

Rights: a send needs PUB on the topic. A pull needs SUB on the topic and on the group. Other requests of a group need
SUB on the group. A retry topic needs SUB on its group. Every request that ordinary clients do not send counts as
administration.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from penstock.broker.accounts import ANY, PUB, SUB, Account, Accounts
from penstock.broker.settings import BrokerSettings
from penstock.broker.topics import REPLY_TOPIC_SUFFIX
from penstock.errors import BadSettings, PenstockError
from penstock.format.constants import HALF_TOPIC, REAL_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC
from penstock.format.record import Record
from penstock.namesrv.access import ADMINISTRATION as NAMESRV_ADMINISTRATION
from penstock.namesrv.access import LocalRule
from penstock.protocol.bodies.clients import CheckClientRequestBody, HeartbeatData
from penstock.protocol.bodies.queues import LockBatchRequestBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import groups, offsets
from penstock.protocol.headers.pull import PullMessage, QueryMessage, ViewMessage
from penstock.protocol.headers.send import EndTransaction, SendMessage, SendMessageV2
from penstock.protocol.signing import account_of, is_signed_with
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Before, Handler, Result
from penstock.remoting.rate_limited_log import RateLimitedLog

log = logging.getLogger("penstock.broker")

# -- rights --------------------------------------------------------------------------------------------------

LookUp = Callable[[int], Record | None]
"""Returns the record at a physical offset; None if there is none."""


class Need(NamedTuple):
    """A requirement of a request: the account must have at least one of `rights` on the topic or the group."""

    rights: int
    topic: str = ""
    group: str = ""

    def __str__(self) -> str:
        what = f"group '{self.group}'" if self.group else f"topic '{self.topic}'"
        return f"{'PUB or SUB' if self.rights == ANY else 'PUB' if self.rights == PUB else 'SUB'} on {what}"


def _topic(name: str, rights: int) -> Need:
    """Returns the need for rights on a topic. A retry topic always needs SUB on its group instead."""
    if name.startswith(RETRY_PREFIX):
        return Need(SUB, group=name.removeprefix(RETRY_PREFIX))
    return Need(rights, topic=name)


def _send(command: Command, look_up: LookUp) -> Iterator[Need]:
    yield _topic(command.read(SendMessage).topic, PUB)


def _send_v2(command: Command, look_up: LookUp) -> Iterator[Need]:
    yield _topic(command.read(SendMessageV2).topic, PUB)


def _reply(command: Command, look_up: LookUp) -> Iterator[Need]:
    """Yields PUB on the topic, except for the cluster's reply topic, which is open to every account."""
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
    """Yields SUB on the group and on the message's topic, because the account must be allowed to read the copy."""
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
    yield Need(SUB, group=command.read(groups.ConsumerGroupRequest).consumer_group)


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
    """Yields SUB on the topic of a message that a request reads; on the real topic of half and delayed messages."""
    if record is not None:
        waits = record.topic in (HALF_TOPIC, SCHEDULE_TOPIC)
        yield _topic(record.properties.get(REAL_TOPIC, record.topic) if waits else record.topic, SUB)


_NEEDS: Final[dict[int, Callable[[Command, LookUp], Iterator[Need]]]] = {
    RequestCode.SEND_MESSAGE: _send,
    RequestCode.SEND_MESSAGE_V2: _send_v2,
    RequestCode.SEND_BATCH_MESSAGE: _send_v2,
    RequestCode.SEND_REPLY_MESSAGE: _reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: _reply,
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
    """Whether a request code is administration: ordinary clients do not send it."""
    return code not in _NEEDS


def needs(command: Command, look_up: LookUp) -> Iterator[Need]:
    """Returns all needs of a request that is not administration. Raises BadRequest."""
    return _NEEDS[command.code](command, look_up)


RELOAD_EVERY_S: Final = 1.0
IsLocal = Callable[[Connection], bool]
"""Whether the peer of a connection is on this machine."""


def is_local(connection: Connection) -> bool:
    return connection.is_loopback


def local_only(handler: Handler, local: IsLocal) -> Handler:
    """Wraps a handler of administration. Callers for which `local` returns False get NO_PERMISSION."""

    def guarded(connection: Connection, command: Command) -> Result:
        if local(connection):
            return handler(connection, command)
        why = f"administration is allowed from the broker's machine only, not from {connection.peer[0]}; see aclEnable"
        return command.reply(ResponseCode.NO_PERMISSION, why)

    return guarded


class Access:
    """Checks requests against the accounts of one access file. An instance is a server's `before` hook."""

    def __init__(self, path: Path) -> None:
        """Raises BadSettings if the file cannot be used."""
        self._path = path
        self.accounts = Accounts.load(path)
        self._state = self._stat()
        self.reads = 1
        """How often the accounts were loaded so far."""
        self._unknown_secret = secrets.token_hex()
        self._refusals = RateLimitedLog(log)
        self.administered_from: dict[str, float] = {}
        """For each host: when an administrator's signed request last came from it, in seconds of the monotonic
        clock."""
        self.look_up: LookUp = _no_record
        """Finds records in the store. The broker sets it."""
        self._warn_if_readable()

    @classmethod
    def of(cls, settings: BrokerSettings) -> Access | None:
        """Returns the access control that the settings ask for; None if aclEnable is false. Raises BadSettings."""
        if not settings.acl_enable:
            return None
        if settings.acl_file is None:
            raise BadSettings("aclEnable=true needs aclFile, the file with the accounts")
        return cls(settings.acl_file)

    # -- the file --------------------------------------------------------------------------------------------

    def reload_if_changed(self) -> None:
        """Loads the accounts again if the file has changed. Logs a file that cannot be used, and keeps the accounts."""
        state = self._stat()
        if state == self._state:
            return
        self._state = state
        try:
            self.accounts = Accounts.load(self._path)
        except BadSettings as error:
            log.error("access file not reloaded, the accounts are unchanged: %s", error)
            return
        self.reads += 1
        log.info("reloaded the access file: %d accounts", len(self.accounts.by_key))
        self._warn_if_readable()

    @property
    def file_name(self) -> str:
        return self._path.name

    @property
    def changed_at_ms(self) -> int:
        """When the file was last modified, in epoch ms, as of the last check; 0 if the file is missing."""
        return 0 if self._state is None else self._state[0] // 1_000_000

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _warn_if_readable(self) -> None:
        if os.name == "posix" and self._path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            log.warning(
                "%s contains secrets and other users of this machine can read it; set mode 0600 (chmod 600)",
                self._path,
            )

    # -- requests --------------------------------------------------------------------------------------------

    def __call__(self, connection: Connection, command: Command) -> Command | None:
        """Returns the reply that refuses a request; None if the request is allowed."""
        try:
            why = self._refusal(connection, command)
        except PenstockError as error:
            why = str(error)
        if not why:
            return None
        self._refusals.warn(f"refused request {command.code} from {connection.peer[0]}: {why}")
        return command.reply(ResponseCode.SYSTEM_ERROR, why)

    def for_name_server(self, rule: LocalRule) -> Before:
        """Returns a name server's `before` hook: administration needs an account; `rule` checks all other requests."""

        def before(connection: Connection, command: Command) -> Command | None:
            return self(connection, command) if command.code in NAMESRV_ADMINISTRATION else rule(connection, command)

        return before

    def _refusal(self, connection: Connection, command: Command) -> str:
        address = connection.peer[0]
        if self.accounts.is_white(address):
            return ""
        key = account_of(command)
        if key is None:
            return "this broker requires signed requests, and this one has no accessKey"
        account = self.accounts.by_key.get(key)
        if account is not None and account.is_white(address):
            return ""
        signed = is_signed_with(command, self._unknown_secret if account is None else account.secret_key)
        if account is None or not signed:
            return f"no account '{key[:64]}', or its secretKey did not sign this request"
        connection.account = key
        missing = self._missing(account, command)
        if not missing and is_administration(command.code):
            self.administered_from[address] = time.monotonic()
        return missing

    def _missing(self, account: Account, command: Command) -> str:
        """Returns why an account may not send this request; an empty text if it may."""
        if is_administration(command.code):
            if account.admin:
                return ""
            return f"request {_name(command.code)} is for administrators, and account '{account.access_key}' is not one"
        for need in needs(command, self.look_up):
            if not account.may(need.rights, topic=need.topic, group=need.group):
                return f"account '{account.access_key}' is not allowed to do this; it needs {need}"
        return ""


def _no_record(offset: int) -> Record | None:
    return None


def _name(code: int) -> str:
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return str(code)
