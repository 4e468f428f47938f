"""Generates those parts of the reference pages that come from tables in the source code.

    python -m penstock.config.reference_pages docs/reference/*settings.md docs/reference/spark.md

A page names the source of each part in a comment. The text between the two comments is replaced:

    <!-- from penstock.store.settings:TABLE -->
    <!-- end -->

A table of settings becomes one Markdown table per section. A table of Spark options becomes one Markdown table. A
collection of names becomes a comma-separated list.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from penstock.config.setting_parser import Setting, SettingTable, load_name

_PART = re.compile(r"<!-- from (\S+) -->\n.*?<!-- end -->", re.DOTALL)


def fill_page(page: str) -> str:
    """Returns the page with all its generated parts replaced."""
    return _PART.sub(lambda part: f"<!-- from {part[1]} -->\n\n{_part(load_name(part[1]))}\n<!-- end -->", page)


def _part(source: SettingTable | Iterable[str]) -> str:
    if isinstance(source, SettingTable):
        return _options(source) if source.noun == "option" else "\n".join(_sections(source))
    names = source if isinstance(source, tuple) else sorted(source)
    return ", ".join(f"`{name}`" for name in names) + ".\n"


def _sections(table: SettingTable) -> Iterable[str]:
    dev = any(setting.dev is not None for setting in table)
    head = ("Name", "Default", *(["Dev profile"] if dev else []), "Meaning")
    for title, settings in groupby(table, key=lambda setting: setting.section):
        yield f"## {title}\n\n{_markdown(head, (_row(setting, dev) for setting in settings))}"


def _row(setting: Setting, dev: bool) -> tuple[str, ...]:
    small = "" if setting.dev is None else f"`{setting.show(setting.dev)}`"
    refused = f"; `true` is refused: {setting.refused}" if setting.refused else ""
    names = ", also ".join(f"`{name}`" for name in (setting.name, *setting.aliases))
    return (names, _default(setting), *([small] if dev else []), setting.meaning + refused)


def _options(table: SettingTable) -> str:
    rows = (
        (
            ", ".join(f"`{name}`" for name in (option.name, *option.aliases)),
            option.section,
            _default(option),
            option.meaning,
        )
        for option in table
    )
    return _markdown(("Option", "For", "Default", "Meaning"), rows)


def _default(setting: Setting) -> str:
    if setting.shown or setting.default in (None, "", ()):
        return setting.shown or "unset"
    return f"`{setting.show(setting.default)}`"


def _markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join((f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines)) + "\n"


def main(paths: Iterable[str]) -> None:
    """Rewrites the pages at `paths`."""
    for path in map(Path, paths):
        path.write_text(fill_page(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
