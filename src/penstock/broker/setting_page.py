"""The reference page of the broker's settings, made from the table.

python -m penstock.broker.setting_page > docs/reference/broker-settings.md
"""

from __future__ import annotations

import sys

from penstock.broker.setting_table import SPECS, WITHOUT_EFFECT
from penstock.store.setting_page import sections

_HEAD = """\
# Settings of the broker

<!-- Made by `python -m penstock.broker.setting_page`; change the table in the source, not this page. -->

Names and defaults are those of Apache RocketMQ 4.9.8, but for `brokerName`, which there is the host's. They stand in
the same `broker.conf` (`--config`) as the [settings of the store](settings.md), or are given one by one
(`--set name=value`, which wins). An unknown name or a value that is not allowed is refused in one sentence.

`brokerIP1` and `listenPort`, the address that clients are told, are settings of the store, because it stands in every
record. `penstock serve --listen` sets both where they are not given.

| Effect | What it means |
|---|---|
| honoured | the broker does what the setting says |
| no effect | accepted, does nothing, and start-up says so; the reason is given |
"""


def settings_page() -> str:
    """The page's whole text."""
    parts = [_HEAD, *sections(SPECS.values())]
    idle = "".join(f"| `{name}` | {why} |\n" for name, why in sorted(WITHOUT_EFFECT.items()))
    parts.append(f"## Without effect\n\n| Name | Why |\n|---|---|\n{idle}")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(settings_page())
