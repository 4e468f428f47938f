"""Self-contained HTML pages with charts, without scripts, fonts or network access. Pure functions.

The functions escape every text that is passed in, because producers choose the names of topics, tags and hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from penstock.human_units import format_size

BARS: Final = 15
"""The maximum number of bars in a chart."""
_WIDTH, _ROW, _LABEL = 860, 26, 300
_HEIGHT, _MARGIN = 180, 46
_HUES: Final = ("#2f7ea6", "#c4662a", "#3f8f5b", "#8a5aa8")
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1f2933; --faint: #7b8794; --bar: #2f7ea6; --paper: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --faint: #9aa5b1; --bar: #5bb0d8; --paper: #14191f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
body { margin: 2rem auto; max-width: 900px; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }
svg .faint { fill: var(--faint); } svg rect { fill: var(--bar); }
svg .away { fill: var(--faint); opacity: .25; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """Returns an HTML page of the HTML texts `parts`. Leaves out empty parts."""
    head = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
    ]
    return "\n".join([*head, *(part for part in parts if part), "</body></html>"]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> str:
    """Returns an HTML table. The columns named in `right` hold numbers and are aligned to the right."""
    classes = [" class='n'" if name in right else "" for name in head]
    titles = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(head, classes, strict=True))
    lines = (
        "".join(f"<td{kind}>{escape(str(cell))}</td>" for cell, kind in zip(row, classes, strict=True)) for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def bars(title: str, rows: Sequence[tuple[str, int]]) -> str:
    """Returns a chart with a bar for each (name, bytes) of the first `BARS` rows. Returns "" without rows."""
    shown = list(rows[:BARS])
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
        marks.append(f"<text class='faint' x='{_LABEL + width + 6:.1f}' y='{y + 17}'>{format_size(size)}</text>")
    more = f"<p>and {len(rows) - BARS} more</p>" if len(rows) > BARS else ""
    return f"<h2>{escape(title)}</h2>{_svg(len(shown) * _ROW, marks)}{more}"


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]], away: Sequence[tuple[float, float]]) -> str:
    """Returns a chart of lines over time. A line is an ordered list of (second, value). `away` are shaded intervals."""
    points = [point for line in series.values() for point in line]
    if not points:
        return ""
    last = max([second for second, _ in points] + [end for _, end in away]) or 1.0
    most = max(value for _, value in points) or 1.0
    across = (_WIDTH - 2 * _MARGIN) / last

    def point(second: float, value: float) -> str:
        return f"{_MARGIN + second * across:.1f},{_HEIGHT - 24 - (_HEIGHT - 44) * value / most:.1f}"

    marks = [
        f"<rect class='away' x='{_MARGIN + begin * across:.1f}' y='16' width='{max((end - begin) * across, 2):.1f}' "
        f"height='{_HEIGHT - 40}'/>"
        for begin, end in away
    ]
    for number, (name, line) in enumerate(series.items()):
        hue = _HUES[number % len(_HUES)]
        path = " ".join(point(*each) for each in line)
        marks.append(f"<polyline points='{path}' fill='none' stroke='{hue}' stroke-width='2'/>")
        marks.append(f"<text x='{_MARGIN + 8 + number * 190}' y='12' style='fill:{hue}'>{escape(name)}</text>")
    marks.append(f"<text class='faint' x='{_MARGIN - 6}' y='24' text-anchor='end'>{most:,.0f}</text>")
    marks.append(f"<text class='faint' x='{_MARGIN - 6}' y='{_HEIGHT - 20}' text-anchor='end'>0</text>")
    marks.append(f"<text class='faint' x='{_WIDTH - _MARGIN}' y='{_HEIGHT - 6}' text-anchor='end'>{last:.1f} s</text>")
    return f"<h2>{escape(title)}</h2>{_svg(_HEIGHT, marks)}"


def _svg(height: int, marks: Iterable[str]) -> str:
    return f"<svg role='img' viewBox='0 0 {_WIDTH} {height}' width='100%'>{''.join(marks)}</svg>"
