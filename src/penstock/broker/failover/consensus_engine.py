"""The consensus engine as the brokers of one name see it: a few keys under one prefix, read and changed as a whole.

    KEY            VALUE (JSON)                                                            ON A LEASE
    state          State: epoch, master, sync set, ids, ...                                no
    leader         Leader: which process is the master                                     yes
    members/<id>   Member: a running replica                                               yes
    request        SwitchoverOrder: an operator's order                                    no
    history/<n>    Mastership: how epoch n began; the last HISTORY_LIMIT of them           no

`Session` is one lease of one process. `view` is a linearizable read of everything but the history. `commit` carries out
one `Transaction` as a whole or not at all. `Unknown` is an outcome of its own: the transaction may have been carried
out, and may be carried out later. Only a newer version of a key that it expects proves that it cannot be any more.

Everything that is read is checked: a value that does not fit raises BadEngine. Values only; the engines are modules of
their own. A Session is used by one thread, except `deadline` and `wake`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, Literal, Protocol, TypeVar

import msgspec

from penstock.errors import PenstockError
from penstock.format.msgspec_warm_up import prepared

STATE: Final = "state"
LEADER: Final = "leader"
REQUEST: Final = "request"
MEMBERS: Final = "members/"
HISTORY: Final = "history/"
HISTORY_LIMIT: Final = 1000
ABSENT: Final = 0
"""The version of a key that does not exist."""
MAX_REPLICAS: Final = 64
MAX_VALUE: Final = 64 << 10
"""Bytes of one value; a longer one is refused."""
MAX_VIEW: Final = 4 << 20
"""Bytes of one answer of an engine; a longer one is refused."""


def member_key(replica_id: int) -> str:
    return f"{MEMBERS}{replica_id}"


def history_key(epoch: int) -> str:
    return f"{HISTORY}{epoch:010d}"


def boot_time() -> float:
    """Returns seconds of a clock that is never set, and goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class EngineAway(PenstockError):
    """No node of the engine has answered in time. What was asked for a change may have been carried out."""


class BadEngine(PenstockError):
    """The engine refuses to work for this broker, or holds what this version cannot read. A person has to look."""


# -- values ----------------------------------------------------------------------------------------------------------

Id = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Epoch = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Acks(StrEnum):
    """What SEND_OK means: every member of the sync set has the message, or only its master."""

    ALL = "all"
    NONE = "none"


class _Value(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A value of the engine. Fields that a later version adds are ignored."""

    v: Literal[1] = 1

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self)


class State(_Value, frozen=True, kw_only=True, rename="camel"):
    """Who is master, in which epoch, and which replicas have every acknowledged message."""

    epoch: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    master: Id
    sync: Annotated[tuple[Id, ...], msgspec.Meta(min_length=1, max_length=MAX_REPLICAS)]
    """The sync set: sorted ids, the master's among them."""
    ids: Annotated[dict[Text, Id], msgspec.Meta(max_length=MAX_REPLICAS)]
    """The id of each replica, by the random name that lies in its store."""
    next_id: Id = 1
    """The id that the next replica gets. No id is given twice."""
    since: Offset = 0
    """When this epoch began, in epoch ms of the master's clock."""
    why: Text = ""
    acks: Acks = Acks.ALL
    forced: Epoch = 0
    """The newest epoch that a person began, accepting loss; 0 if there is none."""
    successor: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    """The id to which the last master handed over; 0 if it did not."""
    paused: bool = False
    """Whether a person has switched elections off."""


class Leader(_Value, frozen=True, kw_only=True, rename="camel"):
    """The process that is the master. The key vanishes with its lease."""

    id: Id
    epoch: Epoch
    incarnation: Text
    address: Text = ""
    ha_address: Text = ""


class Member(_Value, frozen=True, kw_only=True, rename="camel"):
    """A running replica, as it describes itself."""

    replica: Text
    incarnation: Text
    place: Text = ""
    """The machine and the folder of its store: two processes with one identity are told apart by it."""
    address: Text = ""
    ha_address: Text = ""
    role: Text = ""
    epoch: Epoch = 0
    """The newest epoch that its log has."""
    end: Offset = 0
    """Where its log ends."""
    tainted: bool = False
    """Whether it may have lost messages that it had acknowledged: see `election_rules`."""
    lacking: bool = False
    """Whether its log is lost, as a whole or in part, so that it cannot be elected: see `election_rules`."""
    damaged: bool = False
    """Whether its log has a gap, so that it lacks messages that it had acknowledged: see `election_rules`."""
    learner: bool = False
    priority: Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)] = 0
    version: Text = ""
    why: Text = ""
    """Why it cannot be elected, or what it waits for; empty if all is well."""


class SwitchoverOrder(_Value, frozen=True, kw_only=True, rename="camel"):
    """An operator's order to the master: hand over to another replica."""

    id: Text
    kind: Literal["switchover"] = "switchover"
    to: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    """The id of the next master; 0: the master chooses."""
    since: Offset = 0


class Mastership(_Value, frozen=True, kw_only=True, rename="camel"):
    """How an epoch began."""

    epoch: Epoch
    master: Id
    since: Offset = 0
    why: Text = ""
    start: Offset = 0
    """Where the master's log ended when it was elected."""
    sync: tuple[Id, ...] = ()
    """The sync set from which it was elected."""
    forced: bool = False


V = TypeVar("V", bound=_Value)


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key's value in the engine."""

    value: bytes
    version: int
    """The engine's version of the key: it grows with each change, and is not used again after a deletion."""
    is_mine: bool = False
    """Whether the key is on the lease of the session that read it."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the engine held at one moment."""

    revision: int = 0
    """Grows with each change of any key."""
    state: State | None = None
    state_version: int = ABSENT
    leader: Leader | None = None
    leader_version: int = ABSENT
    leader_is_mine: bool = False
    members: Mapping[int, Member] = field(default_factory=dict)
    own_members: frozenset[int] = frozenset()
    """The ids whose member key is on this session's lease."""
    request: SwitchoverOrder | None = None
    request_version: int = ABSENT

    @classmethod
    def of(cls, revision: int, entries: Mapping[str, KeyValue]) -> View:
        """Returns the view of these keys, without the prefix. Unknown keys are ignored. Raises BadEngine."""
        state, leader, request = entries.get(STATE), entries.get(LEADER), entries.get(REQUEST)
        members: dict[int, Member] = {}
        own: set[int] = set()
        for key, entry in entries.items():
            number = key.removeprefix(MEMBERS)
            if key.startswith(MEMBERS) and number.isascii() and number.isdigit() and len(members) < MAX_REPLICAS:
                members[int(number)] = _decode(key, entry, Member)
                if entry.is_mine:
                    own.add(int(number))
        view = cls(
            revision=revision,
            state=None if state is None else _decode(STATE, state, State),
            state_version=ABSENT if state is None else state.version,
            leader=None if leader is None else _decode(LEADER, leader, Leader),
            leader_version=ABSENT if leader is None else leader.version,
            leader_is_mine=leader is not None and leader.is_mine,
            members=members,
            own_members=frozenset(own),
            request=None if request is None else _decode(REQUEST, request, SwitchoverOrder),
            request_version=ABSENT if request is None else request.version,
        )
        if view.state is not None:
            _check(view.state)
        return view


def _decode(key: str, entry: KeyValue, kind: type[V]) -> V:
    if len(entry.value) > MAX_VALUE:
        raise BadEngine(f"the key {key} has {len(entry.value)} bytes, more than {MAX_VALUE}; remove what wrote it")
    try:
        return msgspec.json.decode(entry.value, type=prepared(kind))
    except msgspec.MsgspecError as error:
        raise BadEngine(f"the key {key} is not what a broker of this version writes: {error}") from None


def decode_history(key: str, value: bytes) -> Mastership:
    """Returns the value of a key of the history. Raises BadEngine."""
    return _decode(key, KeyValue(value, ABSENT), Mastership)


def _check(state: State) -> None:
    problem = ""
    if state.master not in state.sync:
        problem = f"its master {state.master} is not in its sync set {list(state.sync)}"
    elif list(state.sync) != sorted(set(state.sync)):
        problem = f"its sync set {list(state.sync)} is not sorted"
    elif len(set(state.ids.values())) != len(state.ids):
        problem = "it gives one id to two replicas"
    elif not set(state.sync) <= set(state.ids.values()):
        problem = f"its sync set {list(state.sync)} has an id that no replica has"
    elif state.ids and state.next_id <= max(state.ids.values()):
        problem = f"its nextId {state.next_id} is in use"
    if problem:
        raise BadEngine(f"the key {STATE} contradicts itself: {problem}; no broker writes that, so restore it")


# -- transactions ----------------------------------------------------------------------------------------------------


class ChangeKind(StrEnum):
    """What a transaction is for."""

    BOOTSTRAP = "bootstrap"
    JOIN = "join"
    PUBLISH = "publish"
    ELECT = "elect"
    TAKE_OVER = "take over"
    RESTART = "restart"
    REGAIN = "regain"
    EXPAND = "expand"
    SHRINK = "shrink"
    HAND_OVER = "hand over"
    RESIGN = "resign"
    ANSWER = "answer"
    FORCE = "force"
    PAUSE = "pause"
    FORGET = "forget"
    ORDER = "order"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Changes of several keys, carried out together if all expectations hold."""

    what: ChangeKind
    expected: Mapping[str, int] = field(default_factory=dict)
    """The versions that keys must have; ABSENT for keys that must not exist."""
    mine: bool = False
    """Whether the key `leader` must be on this session's lease."""
    puts: Mapping[str, bytes] = field(default_factory=dict)
    leased: frozenset[str] = frozenset()
    """Which of `puts` are put on this session's lease."""
    deletes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Committed:
    """The transaction was carried out; `view` is a read after it."""

    view: View


@dataclass(frozen=True, slots=True)
class NotExpected:
    """An expectation did not hold, and nothing was changed; `view` is a read after that."""

    view: View


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer came: the transaction was carried out, was not, or will be."""

    why: str


Outcome = Committed | NotExpected | Unknown


class Session(Protocol):
    """One lease of one process at an engine, and what is read and written under it."""

    @property
    def ttl_s(self) -> float:
        """The lease's time to live, in seconds, as the engine granted it."""

    @property
    def deadline(self) -> float:
        """When the lease may end, by `boot_time`: when the last answered renewal was sent, plus the time to live."""

    def renew(self) -> bool:
        """Renews the lease. Returns False if it has ended, for good. Raises EngineAway. On a thread of its own."""

    def view(self) -> View:
        """Reads everything but the history, linearizably. Raises EngineAway or BadEngine."""

    def commit(self, transaction: Transaction) -> Outcome:
        """Carries out a transaction. Raises BadEngine."""

    def history(self, limit: int) -> list[Mastership]:
        """Reads the newest entries of the history, newest first. Raises EngineAway or BadEngine."""

    def wait(self, seconds: float) -> None:
        """Returns after this time, or when something may have changed, or when `wake` was called."""

    def wake(self) -> None:
        """Ends a `wait`, or the next one. Any thread may call it."""

    def release(self) -> None:
        """Ends the lease, and with it the keys that are on it. Does not raise; then the keys vanish by themselves."""

    def close(self) -> None:
        """Closes the connections. The lease stays until its time is over."""
