"""The reference page of the settings, made from the table.

python -m penstock.store.setting_page > docs/reference/settings.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby

from penstock.store.broker_names import BROKER_NAMES
from penstock.store.setting_spec import Spec
from penstock.store.setting_table import SPECS

_HEAD = """\
# Settings

<!-- Made by `python -m penstock.store.setting_page`; change the table in the source, not this page. -->

Names and defaults are those of Apache RocketMQ 4.9.8. They are given as `name=value`: in a `broker.conf`
(`--config broker.conf`, Java's properties syntax), or one by one (`--set name=value`, which wins). In Python
they are the attributes of `Settings`, in snake_case: `Settings(sync_flush_timeout=2000)`. An unknown name or
a value that is not allowed is refused in one sentence.

The *dev profile* (`Settings.dev()`) has small files; where its column is empty it has the default.

| Effect | What it means |
|---|---|
| honoured | the store does what the setting says |
| no effect | accepted, does nothing, and start-up says so; the reason is given |
| refused when true | `false` is accepted, `true` is an error |
"""

_RULES = """\
## Rules

- One commitlog folder: several paths joined by `,` are refused.
- A record must fit into one commitlog file. Where `maxMessageSize` + 64 KiB + 8 is more than
  `mappedFileSizeCommitLog`, records are limited to the file's size less 8 bytes, and start-up says so.
- `brokerIP1` is an IP address, not a name; an IPv6 address is written without brackets.
- Booleans are `true` or `false`; sizes are whole numbers of bytes; times are milliseconds unless the table
  says otherwise.
- In Python, RocketMQ's typing errors are put right: `warm_mapped_file_enable`,
  `destroy_mapped_file_interval_forcibly`, `put_msg_index_high_water`, `enable_dledger_commit_log`.
"""

_COLUMNS = """\
| Name | Default | Effect | Meaning |
|---|---|---|---|
"""
_COLUMNS_WITH_DEV = """\
| Name | Default | Dev profile | Effect | Meaning |
|---|---|---|---|---|
"""


def settings_page() -> str:
    """The page's whole text."""
    parts = [_HEAD, *sections(SPECS.values(), dev=True)]
    names = ", ".join(f"`{name}`" for name in sorted(BROKER_NAMES))
    kept = f"Known and kept for the broker, whose [page](broker-settings.md) says what they do: {names}.\n"
    parts.append(f"## Settings of the broker\n\n{kept}")
    parts.append(_RULES)
    return "\n".join(parts)


def sections(specs: Iterable[Spec], *, dev: bool = False) -> Iterator[str]:
    """The settings as tables under their titles; with or without the column of the dev profile."""
    columns = _COLUMNS_WITH_DEV if dev else _COLUMNS
    for title, alike in groupby(specs, key=lambda spec: spec.about.section):
        rows = "".join(_row(spec, dev) for spec in alike)
        yield f"## {title}\n\n{columns}{rows}"


def _row(spec: Spec, dev: bool) -> str:
    names = f"`{spec.name}`" + "".join(f", also `{alias}`" for alias in spec.about.aliases)
    default = _code(spec, spec.default) if spec.default is not None else "unset"
    small = "" if spec.about.dev is None else _code(spec, spec.about.dev)
    columns = [names, default, *([small] if dev else []), str(spec.about.effect), spec.about.meaning]
    return f"| {' | '.join(columns)} |\n"


def _code(spec: Spec, value: object) -> str:
    return f"`{spec.show(value)}`"


if __name__ == "__main__":
    sys.stdout.write(settings_page())
