"""Colours, style sheet and chart options."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

IN: Final = "#0d9488"
OUT: Final = "#6366f1"
LATE: Final = "#d97706"
BEHIND: Final = "#db2777"
LINES: Final = (IN, OUT, LATE, BEHIND, "#0284c7", "#65a30d", "#9333ea", "#dc2626")

CSS: Final = Path(__file__).with_name("console.css").read_text(encoding="utf-8")


def lines(names: list[str], *, unit: str = "", colours: tuple[str, ...] = LINES) -> dict[str, Any]:
    """Returns the options of a line chart over time, without data. Labels are shown as text, not as markup."""
    return {
        "animation": False,
        "color": list(colours),
        "grid": {"left": 8, "right": 14, "top": 34, "bottom": 6, "containLabel": True},
        "legend": {"top": 0, "left": 0, "type": "scroll", "textStyle": {"color": "#8a9aa1"}, "itemHeight": 8},
        "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True},
        "xAxis": {"type": "time", "axisLabel": {"color": "#8a9aa1", "hideOverlap": True}, "axisLine": {"show": False}},
        "yAxis": {
            "type": "value",
            "min": 0,
            "name": unit,
            "nameTextStyle": {"color": "#8a9aa1", "align": "right"},
            "axisLabel": {"color": "#8a9aa1"},
            "splitLine": {"lineStyle": {"color": "#8a9aa133"}},
        },
        "series": [
            {"name": name, "type": "line", "showSymbol": False, "data": [], "lineStyle": {"width": 2}} for name in names
        ],
    }
