"""Access control: who may ask for which operation.

Without it (`aclEnable=false`), every client may send and consume, but only this machine may administer (`only_local`);
ordinary requests are not checked at all. With it, every request, even from this machine, must be signed by an account
of the access file (`aclFile`) that has the rights for it. Addresses in the file's white lists need no account, as in
RocketMQ. The broker checks once a second whether the file has changed. A file that cannot be used is logged, and the
accounts stay unchanged. A refused request gets SYSTEM_ERROR with the reason, as from a 4.x broker. No secret is ever
logged or sent.

Who signed a request is the protocol's business: `remoting.signatures` checks that and sets `Client.account`. Which
rights an operation needs is decided here, by its name and its request. `NEEDS` has a rule for every operation that is
not administration.

Rights: a send needs PUB on the topic. A pull needs SUB on the topic and on the group. Other requests of a group need
SUB on the group. A retry topic needs SUB on its group. Administration needs an administrator.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from penstock.broker.access_file import ANY, PUB, SUB, WAITING_TOPICS, Account, Accounts, UnreadableAccessFile, matcher
from penstock.broker.consumers import GroupMember, Heartbeat
from penstock.broker.operations_as_plain_calls import Admission, Admit, Call, Client, Denied, Guard, Operation
from penstock.broker.reads_without_blocking_the_loop import after_read
from penstock.broker.replay_protection import ReplayGuard
from penstock.broker.settings import BrokerSettings
from penstock.broker.topics import REPLY_TOPIC_SUFFIX
from penstock.errors import BadSettings
from penstock.format.constants import HALF_TOPIC, REAL_TOPIC, RETRY_PREFIX
from penstock.format.record import Record
from penstock.protocol.bodies.clients import CheckClientRequestBody
from penstock.protocol.bodies.queues import LockBatchRequestBody
from penstock.protocol.codes import ResponseCode
from penstock.protocol.headers.groups import ConsumerGroupRequest, SendBack, UnregisterClient
from penstock.protocol.headers.offsets import QueryConsumerOffset, UpdateConsumerOffset
from penstock.protocol.headers.pull import PullMessage, ViewMessage
from penstock.protocol.headers.send import EndTransaction
from penstock.rate_limited_log import RateLimitedLog
from penstock.store.message_store import MessageStore

log = logging.getLogger("penstock.broker")

# -- rights --------------------------------------------------------------------------------------------------


class Need(NamedTuple):
    """A requirement of a request: the account must have at least one of `rights` on the topic or the group."""

    rights: int
    topic: str = ""
    group: str = ""

    def __str__(self) -> str:
        what = f"group '{self.group}'" if self.group else f"topic '{self.topic}'"
        return f"{'PUB or SUB' if self.rights == ANY else 'PUB' if self.rights == PUB else 'SUB'} on {what}"


Rule = Callable[[Any, Record | None], Iterable[Need]]
"""Returns the needs of a request, and of the record that it is about; see `RECORDS`."""


def _topic(name: str, rights: int) -> Need:
    """Returns the need for rights on a topic. A retry topic always needs SUB on its group instead."""
    if name.startswith(RETRY_PREFIX):
        return Need(SUB, group=name.removeprefix(RETRY_PREFIX))
    return Need(rights, topic=name)


def _on_topic(rights: int) -> Rule:
    return lambda request, record: (_topic(request.topic, rights),)


def _consume(
    request: PullMessage | QueryConsumerOffset | UpdateConsumerOffset, record: Record | None
) -> Iterator[Need]:
    yield _topic(request.topic, SUB)
    yield Need(SUB, group=request.consumer_group)


def _group(request: LockBatchRequestBody | ConsumerGroupRequest, record: Record | None) -> Iterator[Need]:
    yield Need(SUB, group=request.consumer_group)


def _send_back(request: SendBack, record: Record | None) -> Iterator[Need]:
    """Yields SUB on the group and on the message's topic, because the account must be allowed to read the copy."""
    yield Need(SUB, group=request.group)
    yield from _of_record(request, record)


def _heartbeat(request: Heartbeat, record: Record | None) -> Iterator[Need]:
    for consumer in request.data.consumer_data_set:
        yield Need(SUB, group=consumer.group_name)
        for subscription in consumer.subscription_data_set:
            yield _topic(subscription.topic, SUB)


def _unregister(request: UnregisterClient, record: Record | None) -> Iterator[Need]:
    if request.consumer_group:
        yield Need(SUB, group=request.consumer_group)


def _check_subscription(request: CheckClientRequestBody, record: Record | None) -> Iterator[Need]:
    yield Need(SUB, group=request.group)
    yield _topic(request.subscription_data.topic, SUB)


def _end_transaction(request: EndTransaction, record: Record | None) -> Iterator[Need]:
    if record is not None and record.topic == HALF_TOPIC:
        yield _topic(record.properties.get(REAL_TOPIC, ""), PUB)


def _of_record(request: ViewMessage | SendBack, record: Record | None) -> Iterator[Need]:
    """Yields SUB on the topic of a message that a request reads; on the real topic of a message that waits for it."""
    if record is not None:
        waits = record.topic in WAITING_TOPICS
        yield _topic(record.properties.get(REAL_TOPIC, record.topic) if waits else record.topic, SUB)


NEEDS: Final[Mapping[str, Rule]] = {
    "send": _on_topic(PUB),
    "send reply": _on_topic(PUB),
    "pull": _consume,
    "query offset": _consume,
    "commit offset": _consume,
    "search offset": _on_topic(ANY),
    "max offset": _on_topic(ANY),
    "min offset": _on_topic(ANY),
    "earliest time": _on_topic(ANY),
    "send back": _send_back,
    "lock queues": _group,
    "unlock queues": _group,
    "list consumers": _group,
    "heartbeat": _heartbeat,
    "unregister": _unregister,
    "check subscription": _check_subscription,
    "end transaction": _end_transaction,
    "query": _on_topic(SUB),
    "view": _of_record,
}
"""What the requests of ordinary clients need, by the name of the operation."""

RECORDS: Final[Mapping[str, Callable[[Any], int]]] = {
    "send back": lambda request: request.offset,
    "end transaction": lambda request: request.commit_log_offset,
    "view": lambda request: request.offset,
}
"""The physical offset of the record on which the needs of an operation depend."""


# -- without accounts ----------------------------------------------------------------------------------------

IsLocal = Callable[[Client], bool]
"""Whether a client is on this machine."""


def is_local(client: Client) -> bool:
    return client.is_loopback


def only_local(local: IsLocal, is_slave: IsLocal) -> Admission:
    """Returns the admission without accounts: administration is for clients for which `local` returns True.

    Clients for which `is_slave` returns True may ask for what slaves copy.
    """

    def admission(operation: Operation) -> Admit | None:
        def admit(client: Client) -> None:
            if not local(client) and not (operation.for_slaves and is_slave(client)):
                why = f"administration is allowed from the broker's machine only, not from {client.peer[0]}"
                raise Denied(ResponseCode.NO_PERMISSION, f"{why}; see aclEnable")

        return admit if operation.is_administration else None

    return admission


# -- with accounts -------------------------------------------------------------------------------------------

RELOAD_EVERY_S: Final = 1.0


class Access:
    """The accounts of one access file, and what they may do."""

    def __init__(self, path: Path, reply_topic: str = "", *, plain_administration: bool = False) -> None:
        """`reply_topic` is the cluster's: every account may send replies to it. With `plain_administration`, other
        hosts may administer over connections without TLS. Raises BadSettings if the file cannot be used.
        """
        self._reply_topic = reply_topic
        self._plain_administration = plain_administration
        self.replays = ReplayGuard()
        self._path = path
        self.accounts = Accounts.load(path)
        self._state = self._complained_of = self._stat()
        self.reads = 1
        """How often the accounts were loaded so far."""
        self._nobody = Account(access_key="", secret_key=secrets.token_hex(), is_white=matcher(""))
        self._refusals = RateLimitedLog(log)
        self._warn_if_readable()

    @classmethod
    def of(cls, settings: BrokerSettings) -> Access | None:
        """Returns the access control that the settings ask for; None if aclEnable is false. Raises BadSettings."""
        if not settings.acl_enable:
            return None
        if settings.acl_file is None:
            raise BadSettings("aclEnable=true needs aclFile, the file with the accounts")
        reply_topic = settings.broker_cluster_name + REPLY_TOPIC_SUFFIX
        return cls(settings.acl_file, reply_topic, plain_administration=settings.plain_administration)

    # -- the file --------------------------------------------------------------------------------------------

    def reload_if_changed(self) -> None:
        """Loads the accounts again if the file has changed. Logs a file that cannot be used, and keeps the accounts.

        If the file cannot be read, and after any other error, the next call tries again.
        """
        state = self._stat()
        if state == self._state:
            return
        try:
            self.accounts = Accounts.load(self._path)
        except BadSettings as error:
            if not isinstance(error, UnreadableAccessFile):
                self._state = state
            if state != self._complained_of:
                self._complained_of = state
                log.error("access file not reloaded, the accounts are unchanged: %s", error)
            return
        self._state = self._complained_of = state
        self.reads += 1
        log.info("reloaded the access file: %d accounts", len(self.accounts.by_key))
        self._warn_if_readable()

    @property
    def path(self) -> Path:
        """The access file."""
        return self._path.absolute()

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

    def account(self, client: Client, key: str | None) -> Account | None:
        """Returns the account of a request with this access key; None if the client's address needs no account.

        An unknown key has an account without rights, whose secret no one knows: so the time that a check of its
        signature takes does not tell which accounts exist. Raises Denied if an account is needed and there is no key.
        """
        address = client.peer[0]
        if self.accounts.is_white(address):
            return None
        if key is None:
            self.refuse(client, "a request", "this broker requires signed requests, and this one has no accessKey")
        account = self.accounts.by_key.get(key, self._nobody)
        return None if account.is_white(address) else account

    def admission(self, is_slave: IsLocal) -> Admission:
        """Returns the admission with accounts: administration is for administrators.

        Clients for which `is_slave` returns True may ask over a connection without TLS for what slaves copy.
        """

        def admission(operation: Operation) -> Admit | None:
            if not operation.is_administration:
                return None
            name, for_slaves = f"'{operation.name}'", operation.for_slaves

            def admit(client: Client) -> None:
                self.check_administrator(client, name, may_be_plain=for_slaves and is_slave(client))

            return admit

        return admission

    def check_administrator(self, client: Client, request: str, *, may_be_plain: bool = False) -> None:
        """Raises Denied, which names the request, if its client is not an administrator.

        From other hosts it must use TLS, unless `may_be_plain` or the setting plainAdministration allows otherwise: the
        signature hides nothing, and that of RocketMQ's tools can be used again for another request.
        """
        account = self.account(client, client.account)
        if account is None:
            return
        if not (client.is_loopback or client.secure or may_be_plain or self._plain_administration):
            why = "administration from another host needs TLS; use TLS, or set plainAdministration=true at the broker"
            self.refuse(client, request, why)
        if not account.admin:
            why = f"{request} is for administrators, and account '{account.access_key}' is not one"
            self.refuse(client, request, why)

    def guard(self, store: MessageStore) -> Guard:
        """Returns the guard that checks the rights of all requests but administration."""

        def guard(operation: Operation) -> Call:
            if operation.is_administration:
                return operation.call
            call, needs, offset_of = operation.call, NEEDS[operation.name], RECORDS.get(operation.name)
            open_topic = self._reply_topic if operation.name == "send reply" else None

            def check_and_call(
                account: Account, client: Client, request: Any, more: tuple[Any, ...], record: Record | None
            ) -> Any:
                for need in needs(request, record):
                    if not account.may(need.rights, topic=need.topic, group=need.group):
                        why = f"account '{account.access_key}' is not allowed to do this; it needs {need}"
                        self.refuse(client, f"'{operation.name}'", why)
                return call(client, request, *more)

            def guarded(client: Client, request: Any, *more: Any) -> Any:
                account = self.account(client, client.account)  # not after a read: it belongs to this request
                if account is None or (open_topic is not None and request.topic == open_topic):
                    return call(client, request, *more)
                if offset_of is None:
                    return check_and_call(account, client, request, more, None)
                check = partial(check_and_call, account, client, request, more)
                return after_read(store, store.try_look_up(offset_of(request)), client, check)

            return guarded

        return guard

    def may_publish(self, producer: GroupMember, topic: str) -> bool:
        """Whether the account that registered a producer may send to a topic, and so may see its half messages."""
        try:
            account = self.account(producer.client, producer.account)
        except Denied:
            return False
        need = _topic(topic, PUB)
        return account is None or account.may(need.rights, topic=need.topic, group=need.group)

    def refuse(self, client: Client, request: str, why: str) -> NoReturn:
        """Logs that a request is refused, at most one line a second, and raises Denied."""
        self._refusals.warn(f"refused {request} from {client.peer[0]}: {why}")
        raise Denied(ResponseCode.SYSTEM_ERROR, why)
