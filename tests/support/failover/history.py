"""What clients, replicas and the consensus engine saw in one run: values only, which can be saved and read again.

Times are seconds of one monotonic clock, the test's own. A message is known by its token, the first word of its body;
each token is sent once and never again. A queue is known by a text such as `orders-0`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import msgspec


class Outcome(StrEnum):
    """What a producer learned about one message."""

    OK = "SEND_OK"
    STORED = "stored"
    """Stored at the broker that answered, without a promise: FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE, ..."""
    REFUSED = "refused"
    """Not stored, as the client says."""
    UNKNOWN = "unknown"
    """No answer came."""


class Send(msgspec.Struct, frozen=True):
    """One message of a producer, and the answer."""

    producer: str
    number: int
    """Position among the messages of its producer, which waits for each answer before it sends the next one."""
    token: str
    queue: str
    began: float
    ended: float
    outcome: Outcome
    offset: int = -1
    """Queue offset; -1 if it is not known, as below."""
    physical: int = -1
    """Physical offset of the record."""
    broker: str = ""
    """Address of the broker that stored it."""
    said: str = ""
    """The status or the error, as the client gives it."""

    @property
    def is_stored(self) -> bool:
        return self.outcome in (Outcome.OK, Outcome.STORED)


class Consumption(msgspec.Struct, frozen=True):
    """One message that a consumer received."""

    group: str
    consumer: str
    queue: str
    offset: int
    token: str
    at: float


class Commit(msgspec.Struct, frozen=True):
    """A consumer group's offset of a queue, as a consumer has stored it: all before it is consumed."""

    group: str
    queue: str
    offset: int
    at: float


class Stored(msgspec.Struct, frozen=True):
    """One record of a log."""

    physical: int
    size: int
    digest: str
    """Of all its bytes."""
    queue: str = ""
    """Empty for a filler at the end of a file."""
    offset: int = -1
    token: str = ""
    """Empty for what no producer of the run has sent."""
    writer: str = ""
    """Address of the broker that appended it, as the record says."""


class Tail(msgspec.Struct, frozen=True):
    """The end of a log that was cut off and kept."""

    start: int
    end: int
    tokens: tuple[str, ...]
    is_whole: bool = False
    """Whether the whole store was moved aside."""


class Replica(msgspec.Struct, frozen=True):
    """What one replica has at the end, after it has caught up and was stopped."""

    name: str
    address: str
    begin: int
    end: int
    records: tuple[Stored, ...]
    epochs: tuple[tuple[int, int], ...] = ()
    """Each epoch with the physical offset at which it begins, oldest first."""
    tails: tuple[Tail, ...] = ()
    problems: tuple[str, ...] = ()
    """What an audit of log, queues and index found."""

    def epoch_at(self, physical: int) -> int:
        """Returns the epoch that wrote this part of the log; 0 if the list does not say."""
        return max((epoch for epoch, start in self.epochs if start <= physical), default=0)


class State(msgspec.Struct, frozen=True):
    """One value of the key that names master and sync set."""

    revision: int
    epoch: int
    master: int
    sync: tuple[int, ...]
    forced: bool = False
    """Whether a person began this epoch and accepted loss."""


class Leader(msgspec.Struct, frozen=True):
    """One value of the key that names the process which is master."""

    revision: int
    epoch: int
    id: int
    address: str


class Strike(msgspec.Struct, frozen=True):
    """One accident."""

    kind: str
    target: str
    at: float
    healed: float
    """When its cause was over: the process runs again, the link is whole."""
    is_writable: bool = True
    """Whether messages must be stored again while the cause lasts; else only after it."""


class History(msgspec.Struct, frozen=True):
    """One run."""

    sends: tuple[Send, ...] = ()
    consumptions: tuple[Consumption, ...] = ()
    commits: tuple[Commit, ...] = ()
    groups: tuple[str, ...] = ()
    """Consumer groups that had the time to read everything."""
    ordered: tuple[str, ...] = ()
    """Those of them whose consumers read each queue in order."""
    replicas: tuple[Replica, ...] = ()
    states: tuple[State, ...] = ()
    leaders: tuple[Leader, ...] = ()
    strikes: tuple[Strike, ...] = ()
    wiped: tuple[str, ...] = ()
    """Addresses of brokers that lost their disk at some time."""

    @property
    def acknowledged(self) -> Iterable[Send]:
        return (send for send in self.sends if send.outcome is Outcome.OK)

    @property
    def final(self) -> Replica:
        """The replica that is master at the end; the one with the longest log if that is not known."""
        last = self.leaders[-1].address if self.leaders else ""
        return max(self.replicas, key=lambda each: (each.address == last, each.end))

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: Path) -> History:
        return msgspec.json.decode(path.read_bytes(), type=cls)
