"""The views of a store that queries name: one for each topic, and `log`, `queues`, `groups` and `by_key(topic, key)`.

A topic and the log have the columns of a scan, and `body_json`: the body if it is valid JSON. A topic that has the name
of one of the other views is found in `log` only. `by_key` is replaced in the text of a query by the name of a view
before an engine sees it, because an engine cannot call the index itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock.errors import BadQuery, BadSettings
from penstock.pipeline.arrow_scan import SCAN_SCHEMA, ScanOptions, find_topic, open_stores

LOG: Final = "log"
QUEUES: Final = "queues"
GROUPS: Final = "groups"
FIXED: Final = (LOG, QUEUES, GROUPS)
BODY_JSON: Final = "body_json"
MESSAGE_COLUMNS: Final = (*SCAN_SCHEMA.names, BODY_JSON)
_TIME: Final = pa.timestamp("us", tz="UTC")
QUEUES_SCHEMA: Final = pa.schema(
    [
        ("broker", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("min_offset", pa.int64()),
        ("max_offset", pa.int64()),
        ("messages", pa.int64()),
        ("oldest", _TIME),
        ("newest", _TIME),
    ]
)
GROUPS_SCHEMA: Final = pa.schema(
    [
        ("broker", pa.string()),
        ("consumer_group", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("min_offset", pa.int64()),
        ("max_offset", pa.int64()),
        ("consumer_offset", pa.int64()),
        ("behind", pa.int64()),
        ("gone", pa.int64()),
        ("behind_ms", pa.int64()),
        ("last_consumed", _TIME),
        ("oldest_unread", _TIME),
        ("newest", _TIME),
        ("stuck", pa.bool_()),
    ]
)
_TEXT: Final = r"'(?:[^']|'')*'"
_SKIPPED: Final = rf"""{_TEXT}|"(?:[^"]|"")*"|`[^`]*`|--[^\n]*|/\*.*?\*/"""
_BY_KEY: Final = re.compile(
    rf"{_SKIPPED}|\bby_key\s*\((?:\s*(?P<topic>{_TEXT})\s*,\s*(?P<key>{_TEXT})\s*\))?", re.IGNORECASE | re.DOTALL
)


class KeyView(NamedTuple):
    """A call of `by_key` in a query, and the name of the view that replaces it."""

    name: str
    topic: str
    key: str


def columns_of(name: str) -> tuple[str, ...]:
    """Returns the columns of a view."""
    if name == QUEUES:
        return tuple(QUEUES_SCHEMA.names)
    return tuple(GROUPS_SCHEMA.names) if name == GROUPS else MESSAGE_COLUMNS


def replace_key_views(query: str, quote: Callable[[str], str]) -> tuple[str, list[KeyView]]:
    """Replaces each `by_key('topic', 'key')` by the quoted name of a view. Returns the new text and these views.

    Raises BadQuery if the arguments are not two texts.
    """
    found: dict[str, KeyView] = {}

    def replace(match: re.Match[str]) -> str:
        if not match[0].lower().startswith("by_key"):
            return match[0]
        if match["topic"] is None:
            raise BadQuery("by_key takes a topic and a key as texts, as in by_key('orders', 'order-17')")
        topic, key = (match[part][1:-1].replace("''", "'") for part in ("topic", "key"))
        view = found.setdefault(f"{topic} {key}", KeyView(f"by_key_{len(found)}", topic, key))
        return quote(view.name)

    return _BY_KEY.sub(replace, query), list(found.values())


def told_apart(views: Iterable[str], query: str) -> list[str]:
    """Returns the views that a query names. Of topics that differ in case only, that is the one that its text has.

    Raises BadQuery if it has both or neither of them, because engines take them for one.
    """
    by_name: dict[str, list[str]] = {}
    for view in sorted(set(views)):
        by_name.setdefault(view.lower(), []).append(view)
    chosen = []
    for same in by_name.values():
        spelled = same if len(same) == 1 else [view for view in same if view in query]
        if len(spelled) != 1:
            raise BadQuery(
                f"the topics {' and '.join(same)} differ in case only; write the name as it is, and one of them a query"
            )
        chosen += spelled
    return chosen


class Views:
    """The views of the stores that `options` name. Not thread-safe."""

    def __init__(self, options: ScanOptions) -> None:
        """Raises BadStore or BadSettings if the stores cannot be read."""
        self._options = options
        self.topics: list[str] = []
        self.refresh()

    def refresh(self) -> None:
        """Reads the list of topics again."""
        with closing(open_stores(self._options)) as source:
            self.topics = source.topics()

    @property
    def names(self) -> list[str]:
        """All views, the topics first."""
        return [*(topic for topic in self.topics if topic.lower() not in FIXED), *FIXED]

    def find(self, name: str) -> str:
        """Returns the view that a query calls `name`, in any case. Raises BadSettings if there is none."""
        return name.lower() if name.lower() in FIXED else self._find_topic(name)

    def _find_topic(self, name: str) -> str:
        """Reads the list of topics again only for a topic that is not in it: that takes longer than a short query."""
        try:
            return find_topic(name, self.topics)
        except BadSettings:
            self.refresh()
        return find_topic(name, self.names)

    def scan_of(self, name: str) -> ScanOptions:
        """Returns what the view of a topic, or `log`, reads."""
        return self._options if name == LOG else msgspec.structs.replace(self._options, topics=(name,))

    def scan_of_key(self, view: KeyView) -> ScanOptions:
        """Returns what a call of `by_key` reads. Raises BadSettings if there is no such topic."""
        topic = self._find_topic(view.topic)
        return msgspec.structs.replace(self._options, topics=(topic,), keys=(view.key,))

    def table_of(self, name: str) -> pa.Table:
        """Returns the rows of `queues` or `groups`, as of now."""
        return self._queues() if name == QUEUES else self._groups()

    def _queues(self) -> pa.Table:
        rows = []
        with closing(open_stores(self._options)) as source:
            for store in source.stores():
                for topic, queue_id in sorted(store.queues()):
                    low, high = store.bounds(topic, queue_id)
                    times = (store.store_time(topic, queue_id, at) for at in (low, high - 1))
                    rows.append((store.broker, topic, queue_id, low, high, high - low, *map(_moment, times)))
        return _table(rows, QUEUES_SCHEMA)

    def _groups(self) -> pa.Table:
        from penstock.pipeline.jobs.lag import lag_row, mark_stuck, queue_lags

        with closing(open_stores(self._options)) as source:
            found = [
                each
                for store in source.stores()
                for each in queue_lags(
                    store.broker, store.committed_offsets(), store.queues(), store.bounds, store.store_time
                )
            ]
        return _table([lag_row(each) for each in mark_stuck(found)], GROUPS_SCHEMA)


def _moment(milliseconds: int) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds > 0 else None


def _table(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(list(values), field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
