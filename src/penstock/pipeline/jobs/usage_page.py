"""The usage of stores as one page with charts, which needs nothing but itself: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from penstock.pipeline.jobs.usage import Usage

_BARS: Final = 15
_WIDTH, _ROW, _LABEL = 860, 26, 300
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1f2933; --faint: #7b8794; --bar: #2f7ea6; --paper: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --faint: #9aa5b1; --bar: #5bb0d8; --paper: #14191f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
body { margin: 2rem auto; max-width: 900px; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }
svg .faint { fill: var(--faint); } svg rect { fill: var(--bar); }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: left; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
"""


def page(found: Usage) -> str:
    """The page as HTML. Names of topics, tags and hosts come from producers, and are escaped."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>Usage of {_many(len(found.disks), 'store')}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{found.messages:,} messages, {_units(found.size)}</h1>",
        _disks(found),
        _bars("Topics", [(key.topic or "?", size) for key, _, size in found.rows("topic")]),
        _bars("Queues", [(f"{key.topic} / {key.queue_id}", size) for key, _, size in found.rows("queue")]),
        _bars("Producers", [(f"{key.host} → {key.topic}", size) for key, _, size in found.rows("producer")]),
        _bars("Tags", [(f"{key.topic} : {key.tag or '(none)'}", size) for key, _, size in found.rows("tag")]),
        _days(found),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _disks(found: Usage) -> str:
    rows = []
    for disk in found.disks:
        left = "–" if disk.days_left is None else f"{disk.days_left:.0f}"
        figures = (_units(disk.log), _units(disk.per_day), _units(disk.free), left)
        cells = "".join(f"<td class='n'>{figure}</td>" for figure in figures)
        rows.append(f"<tr><td>{escape(disk.store)}</td>{cells}</tr>")
    head = "".join(f"<th class='n'>{name}</th>" for name in ("log", "a day", "free", "days left"))
    return f"<table><thead><tr><th>store</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _bars(title: str, rows: Sequence[tuple[str, int]]) -> str:
    shown = list(rows[:_BARS])
    if not shown:
        return ""
    most = max(size for _, size in shown) or 1
    room = _WIDTH - _LABEL - 90
    marks = []
    for number, (name, size) in enumerate(shown):
        y, width = number * _ROW, max(room * size / most, 1)
        label = name if len(name) <= 40 else f"{name[:39]}…"
        marks.append(f"<text x='{_LABEL - 8}' y='{y + 17}' text-anchor='end'>{escape(label)}</text>")
        marks.append(f"<rect x='{_LABEL}' y='{y + 4}' width='{width:.1f}' height='{_ROW - 8}' rx='2'/>")
        marks.append(f"<text class='faint' x='{_LABEL + width + 6:.1f}' y='{y + 17}'>{_units(size)}</text>")
    more = f"<p>and {len(rows) - _BARS} more</p>" if len(rows) > _BARS else ""
    height = len(shown) * _ROW
    return f"<h2>{title}</h2><svg role='img' viewBox='0 0 {_WIDTH} {height}' width='100%'>{''.join(marks)}</svg>{more}"


def _days(found: Usage) -> str:
    days: dict[int, int] = {}
    for key, _, size in found.rows("day"):
        days[key.hour] = days.get(key.hour, 0) + size
    names = [(datetime.fromtimestamp(hour * 3600, UTC).strftime("%Y-%m-%d"), days[hour]) for hour in sorted(days)]
    return _bars("Days", names[-_BARS:])


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _units(count: int) -> str:
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
