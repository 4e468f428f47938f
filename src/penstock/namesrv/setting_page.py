"""The reference page of the name server's settings, made from the table.

python -m penstock.namesrv.setting_page > docs/reference/namesrv-settings.md
"""

from __future__ import annotations

import sys

from penstock.namesrv.settings import CHANGEABLE, SPECS, WITHOUT_EFFECT
from penstock.remoting.tls import SERVER_NAMES
from penstock.store.setting_page import sections

_HEAD = """\
# Settings of the name server

<!-- Made by `python -m penstock.namesrv.setting_page`; change the table in the source, not this page. -->

For `penstock namesrv`, in a file (`--config`, Java's properties syntax) or one by one (`--set name=value`, which wins).
An unknown name or a value that is not allowed is refused in one sentence.
"""


def settings_page() -> str:
    """The page's whole text."""
    parts = [_HEAD, *sections(SPECS.values())]
    parts.append(f"## TLS\n\nOn the same port, by RocketMQ's properties: {_names(SERVER_NAMES)}.\n")
    changeable = (
        f"Over the network (code 318) only these can be changed, and only from this machine: {_names(CHANGEABLE)}."
    )
    parts.append(f"## Changes\n\n{changeable}\n")
    parts.append(f"## Without effect\n\nAccepted, and start-up says so: {_names(sorted(WITHOUT_EFFECT))}.\n")
    return "\n".join(parts)


def _names(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(settings_page())
