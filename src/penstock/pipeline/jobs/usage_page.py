"""The usage of stores as one page with charts, which needs nothing but itself: no script, no font, no network."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.pipeline.charts import BARS, bars, document, table, units
from penstock.pipeline.jobs.usage import Usage


def page(found: Usage) -> str:
    """The page as HTML."""
    stores = f"{len(found.disks)} store{'' if len(found.disks) == 1 else 's'}"
    heading = f"<h1>{found.messages:,} messages, {units(found.size)}</h1>"
    return document(f"Usage of {stores}", [heading, disks(found), *charts(found)])


def disks(found: Usage) -> str:
    """The stores and their disks, as a table."""
    rows = [
        (
            disk.store,
            units(disk.log),
            units(disk.per_day),
            units(disk.free),
            "–" if disk.days_left is None else f"{disk.days_left:.0f}",
        )
        for disk in found.disks
    ]
    figures = ("log", "a day", "free", "days left")
    return table(("store", *figures), rows, right=figures)


def charts(found: Usage) -> list[str]:
    """Who fills the disk, from several sides."""
    return [
        bars("Topics", [(key.topic or "?", size) for key, _, size in found.rows("topic")]),
        _days(found),
        bars("Tags", [(f"{key.topic} : {key.tag or '(none)'}", size) for key, _, size in found.rows("tag")]),
        bars("Producers", [(f"{key.host} → {key.topic}", size) for key, _, size in found.rows("producer")]),
        bars("Queues", [(f"{key.topic} / {key.queue_id}", size) for key, _, size in found.rows("queue")]),
    ]


def _days(found: Usage) -> str:
    days: dict[int, int] = {}
    for key, _, size in found.rows("day"):
        days[key.hour] = days.get(key.hour, 0) + size
    names = [(datetime.fromtimestamp(hour * 3600, UTC).strftime("%Y-%m-%d"), days[hour]) for hour in sorted(days)]
    return bars("Days", names[-BARS:])
