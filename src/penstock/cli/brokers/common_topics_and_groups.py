"""The topics and consumer groups that the brokers of `penstock serve --brokers` have in common.

Each broker reports changes of its own tables to the supervisor, which sends them to the others: a creation, a changed
setting, a deletion. `SharedTables` is the supervisor's side; it computes, and does no I/O. A broker that starts reports
its whole tables (the greeting):

- What only one broker has, all get. A topic that a broker lacks when it starts was not deleted there: it may have
  crashed before it wrote the file.
- If settings differ, a broker that came back takes those of the others. When all of them start, the table that changed
  last counts.
- What was deleted while a broker was away is deleted there when it comes back, unless another broker has it again. The
  order is sent at most once, so it cannot delete what was created later.

It ends: an order that a broker applies is not reported, and a report that changes nothing is not sent on. If two
brokers change the same topic at once, the later report counts, and its broker is told, too: a report has the number of
the last order that its broker had applied, which shows that the two crossed. Memory is that of one table, and of one
set of names per broker.

Not thread-safe. A crash loses nothing but deletions that a broker which is away has missed; `MissedDeletions` is
written before that, if there are any.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from penstock.store.files.atomic_files import read_checksummed, write_checksummed
from penstock.store.files.file_io import Files

Kind = Literal["topics", "groups"]
KINDS: Final[tuple[Kind, ...]] = ("topics", "groups")
Key = tuple[Kind, str]
"""A kind of table and a name in it."""
Json = dict[str, Any]
_MAX_MISSED: Final = 10_000
"""Deletions that are kept for each broker that is away."""


class Greeted(msgspec.Struct, tag="greeted", frozen=True):
    """The first line of a broker that serves, before its whole tables."""

    addresses: dict[str, str]
    saved_at: dict[Kind, int]
    """When each table, as it was read from its file, had changed last, in epoch milliseconds."""


class Report(msgspec.Struct, tag="report", frozen=True):
    """A broker's changes of one table, or a part of its greeting. None stands for a deletion."""

    kind: Kind
    entries: dict[str, Json | None]
    seen: int
    """The number of the last order that the broker has applied."""


class GreetingEnd(msgspec.Struct, tag="end", frozen=True):
    """All reports of the greeting were sent."""


class Order(msgspec.Struct, frozen=True):
    """Changes that a broker has to make. None stands for a deletion."""

    number: int
    topics: dict[str, Json | None]
    groups: dict[str, Json | None]


FromBroker = Greeted | Report | GreetingEnd


class _Entry(msgspec.Struct):
    value: Json
    changed_at: int


class _Member(msgspec.Struct):
    """A broker that is connected."""

    is_first_time: bool
    saved_at: dict[Kind, int]
    greets: bool = True
    owed: dict[Key, None] = {}
    """What it has to be told, oldest first. The value is looked up when the order is made."""
    number: int = 0
    """The number of its last order."""
    sent: dict[Key, int] = {}
    """By name, the last order with it, as far as the broker may not have applied it."""


class SharedTables:
    """The common tables, and what each connected broker has to be told."""

    def __init__(self, brokers: Iterable[str], missed: Mapping[str, Iterable[Key]] | None = None) -> None:
        """`missed` are deletions that brokers missed while they were away."""
        self._brokers = tuple(brokers)
        self._entries: dict[Key, _Entry] = {}
        self._members: dict[str, _Member] = {}
        self._known: set[str] = set()
        self.missed: dict[str, dict[Key, None]] = {
            broker: dict.fromkeys((missed or {}).get(broker, ())) for broker in self._brokers
        }
        """By broker: deletions that it has to make when it comes back."""

    def value(self, key: Key) -> Json | None:
        """Returns the settings of a topic or group; None if there is none."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    # -- brokers come and go ---------------------------------------------------------------------------------

    def connect(self, broker: str, saved_at: Mapping[Kind, int]) -> None:
        """A broker greets. It has to be told everything that its greeting does not show."""
        is_first_time = broker not in self._known
        self._known.add(broker)
        self._members[broker] = _Member(is_first_time, dict(saved_at), owed=dict.fromkeys(self._entries))

    def greeted(self, broker: str) -> None:
        """The greeting is complete: from now on orders may be sent."""
        self._members[broker].greets = False

    def disconnect(self, broker: str) -> None:
        self._members.pop(broker, None)

    # -- reports ---------------------------------------------------------------------------------------------

    def take(self, broker: str, report: Report) -> None:
        """Takes a report of a connected broker, and notes whom to tell."""
        member = self._members[broker]
        if member.sent:
            member.sent = {key: number for key, number in member.sent.items() if number > report.seen}
        for name, value in report.entries.items():
            key = (report.kind, name)
            if member.greets and value is not None:
                self._compare(broker, member, key, value)
            elif not member.greets:
                self._change(broker, member, key, value)

    def _compare(self, broker: str, member: _Member, key: Key, value: Json) -> None:
        known = self._entries.get(key)
        if known is None:
            if key in self.missed[broker]:
                member.owed[key] = None
            else:
                self._accept(broker, key, value, member.saved_at.get(key[0], 0))
            return
        saved_at = member.saved_at.get(key[0], 0)
        if known.value == value:
            member.owed.pop(key, None)
            known.changed_at = max(known.changed_at, saved_at)
        elif member.is_first_time and saved_at > known.changed_at:
            self._accept(broker, key, value, saved_at)
            member.owed.pop(key, None)

    def _change(self, broker: str, member: _Member, key: Key, value: Json | None) -> None:
        if self.value(key) == value:
            return
        self._accept(broker, key, value, time.time_ns() // 1_000_000)
        if key in member.sent:  # the broker made its change before it applied that order, and applies it now
            member.owed[key] = None

    def _accept(self, broker: str, key: Key, value: Json | None, changed_at: int) -> None:
        if value is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = _Entry(value, changed_at)
        for other in self._brokers:
            if other in self._members:
                if other != broker:
                    self._members[other].owed[key] = None
            elif value is None:
                if len(self.missed[other]) < _MAX_MISSED:
                    self.missed[other][key] = None
            else:
                self.missed[other].pop(key, None)

    # -- orders ----------------------------------------------------------------------------------------------

    def forget_missed(self, broker: str) -> bool:
        """Drops the deletions that a greeting has turned into orders. Returns whether there were any.

        Save `missed` before the orders are sent: then a deletion is sent at most once.
        """
        had_any = bool(self.missed[broker])
        self.missed[broker].clear()
        return had_any

    def next_order(self, broker: str, limit: int) -> Order | None:
        """Returns what to tell a broker now, at most `limit` names; None if there is nothing."""
        member = self._members.get(broker)
        if member is None or member.greets or not member.owed:
            return None
        member.number += 1
        tables: dict[Kind, dict[str, Json | None]] = {kind: {} for kind in KINDS}
        for key in list(islice(member.owed, limit)):
            del member.owed[key]
            member.sent[key] = member.number
            tables[key[0]][key[1]] = self.value(key)
        return Order(member.number, **tables)


class _Missed(msgspec.Struct):
    brokers: dict[str, list[Key]]


class MissedDeletions:
    """The file of deletions that brokers missed while they were away. A file that cannot be read counts as empty: then
    such a topic comes back with its broker.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = Files()
        self._saved: dict[str, list[Key]] = {}

    def load(self) -> dict[str, list[Key]]:
        found = read_checksummed(self._files, self._path, _Missed)
        self._saved = {} if found is None else found.brokers
        return self._saved

    def save(self, missed: Mapping[str, Iterable[Key]]) -> None:
        """Writes them, if they have changed. They are durable when this returns. Raises StoreFailed or OSError."""
        now = {broker: list(keys) for broker, keys in missed.items() if keys}
        if now != self._saved:
            self._files.make_folder(self._path.parent)
            write_checksummed(self._files, self._path, _Missed(now))
            self._saved = now
