"""The handshake of replication with epochs, and its frames. All numbers are big-endian.

A Penstock slave opens a connection to a Penstock master that knows the handshake with the report -2, which no other
slave sends. Then each side sends its history once:

    OFFSET  SIZE  DESCRIPTION
         0     4  length of the JSON, at most MAX_BYTES
         4     n  JSON: a Hello from the slave, a Welcome from the master

The slave then sends reports, the master frames:

    report  OFFSET  SIZE  DESCRIPTION
                 0     4  the master's epoch
                 4     8  the offset up to which the slave has the log; in the first report, -1: it has nothing

    frame   OFFSET  SIZE  DESCRIPTION
                 0     8  physical offset of the bytes
                 8     4  number of bytes; 0: a heartbeat, or only a newer confirm
                12     4  the master's epoch
                16     8  confirm: the offset up to which consumers see the log; -1: as far as they have it
                24     n  the bytes, which never cross the end of a log file

RocketMQ 5's own handshake cannot be told from a report of RocketMQ 4.9 on one port, so this is another one. Unknown
fields of the JSON are ignored. Values only: nothing here connects or waits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

import msgspec

from penstock.errors import BadFrame, CorruptData
from penstock.format.msgspec_warm_up import prepared
from penstock.store.damage_and_quarantine import DamagedRange
from penstock.store.replication.divergence import LogHistory
from penstock.store.replication.epochs import MAX_ENTRIES, MAX_EPOCH, Entries, check_entries

SHAKE_HANDS: Final = -2
VERSION: Final = 1
RUNTIME_KEY: Final = "penstockHandshake"
"""The entry of a broker's runtime information that says which version of the handshake it knows."""
EPOCH_REPORT: Final = struct.Struct(">iq")
EPOCH_FRAME: Final = struct.Struct(">qiiq")
LENGTH: Final = struct.Struct(">i")
MAX_BYTES: Final = 1 << 20
NO_CONFIRM: Final = -1
_SENT_ENTRIES: Final = 1000
"""The newest epochs are enough: a log that has none of them in common is far too old."""

_SENT_RANGES: Final = 1000
"""The damaged ranges that a slave names at most."""
_SAID: Final = "SAID"
"""The reason of a damaged range of which only the other side knows."""

T = TypeVar("T")
Name = Annotated[str, msgspec.Meta(max_length=255)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=MAX_EPOCH)]
Pairs = Annotated[list[tuple[int, int]], msgspec.Meta(max_length=MAX_ENTRIES)]
Ranges = list[tuple[Offset, Offset]]


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What a slave says of itself."""

    v: int = VERSION
    cluster: Name
    broker: Name
    replica: Name
    """The name of this copy of the log; see `store.replication.replica_identity`."""
    id: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    """The broker id."""
    epoch: Epoch
    """The newest epoch that it knows."""
    entries: Pairs
    begin: Offset
    end: Offset
    learner: bool = False
    """Whether it follows without ever counting for an acknowledgement."""
    damage: Annotated[Ranges, msgspec.Meta(max_length=_SENT_RANGES)] = []
    """The damaged ranges of its log: physical offset and size. Where the master has more, it counts for nothing."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a master answers."""

    v: int = VERSION
    replica: Name = ""
    epoch: Epoch = 0
    entries: Pairs = []
    begin: Offset = 0
    end: Offset = 0
    cut: Offset = 0
    """Physical offset up to which both logs are the same, by their epochs."""
    damage: Annotated[Ranges, msgspec.Meta(max_length=MAX_ENTRIES)] | None = None
    """The damaged ranges of the master's log: those that it knows of, and those of the slave's that it has, too.

    None: the master is older than this field, and no gap can be told from damage that both logs have.
    """
    why: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    """Why the slave may not follow; empty if it may."""


def encode(value: Hello | Welcome) -> bytes:
    """Returns the length and the JSON."""
    data = msgspec.json.encode(value)
    return LENGTH.pack(len(data)) + data


def decode(data: bytes | bytearray, kind: type[T]) -> T:
    """Reads the JSON of a Hello or a Welcome, without its length. Raises BadFrame."""
    try:
        return msgspec.json.decode(data, type=prepared(kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"the handshake of replication is not as it should be: {error}") from None


def length_of(data: bytes | bytearray) -> int:
    """Returns the length of the JSON that begins `data`, which has at least LENGTH.size bytes. Raises BadFrame."""
    (length,) = LENGTH.unpack_from(data)
    if not 0 < length <= MAX_BYTES:
        raise BadFrame(f"the handshake of replication has {length} bytes; at most {MAX_BYTES} are allowed")
    return int(length)


def sent_entries(entries: Entries) -> Entries:
    """Returns the entries that a handshake contains, by which both sides compare their logs."""
    return entries[-_SENT_ENTRIES:]


def named_ranges(damage: Sequence[DamagedRange]) -> Sequence[DamagedRange]:
    """Returns a slave's damaged ranges, in log order, as its Hello names them.

    If there are too many, one range stands for the last ones and for the messages between them. So both sides must
    compare these ranges: otherwise a slave counts itself as whole, and its master does not.
    """
    if len(damage) <= _SENT_RANGES:
        return damage
    *named, last = damage[:_SENT_RANGES]
    return [*named, DamagedRange(last.physical_offset, damage[-1].end - last.physical_offset, last.reason)]


def slaves_ranges(damage: Sequence[DamagedRange]) -> Ranges:
    """Returns a slave's damaged ranges, in log order, for its Hello."""
    return [(each.physical_offset, each.size) for each in named_ranges(damage)]


def masters_ranges(damage: Sequence[DamagedRange]) -> Ranges:
    """Returns a master's damaged ranges, in log order, for its Welcome: the first ones, if many (`names_all`)."""
    return [(each.physical_offset, each.size) for each in damage[:MAX_ENTRIES]]


def names_all(answer: Welcome) -> bool:
    """Whether a master that names its damaged ranges has named all of them for certain."""
    return len(answer.damage or ()) < MAX_ENTRIES


def ranges_of(said: Hello | Welcome) -> list[DamagedRange]:
    """Returns the other side's damaged ranges, as far as it has named them."""
    return [DamagedRange(offset, size, _SAID) for offset, size in said.damage or ()]


def history_of(said: Hello | Welcome) -> LogHistory:
    """Returns the other side's history. Raises BadFrame if its epochs contradict themselves."""
    try:
        entries = check_entries(said.entries)
    except CorruptData as error:
        raise BadFrame(f"the other side's epochs are wrong: {error}") from None
    if said.begin > said.end:
        raise BadFrame(f"the other side's log begins at {said.begin} and ends at {said.end}")
    return LogHistory(entries, said.begin, said.end)
