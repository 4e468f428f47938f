"""Where a replay goes, and where it keeps how far it is.

    <store>/penstock/replay/<name>/                  of a replay into a store
    ~/.local/state/penstock/replay/<name>/           of one into a cluster, unless the caller names a folder
        replay.json, lock, checkpoint/, batches/     what it is, who runs it, and how far it is
        aside/                                       rows that could not be sent, with the reason

Whoever removes that folder begins again: everything is sent once more.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import BadSettings
from penstock.pipeline.cluster_sink import ClusterTarget
from penstock.pipeline.options import Options
from penstock.pipeline.staging import StoreTarget

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A store, or a cluster."""

    store: str = ""
    namesrv: str = ""
    config: str = ""
    """A store: its broker.conf."""
    access_key: str = ""
    secret_key: str = ""

    def check(self) -> None:
        """Raises BadSettings, BadStore, StoreInUse."""
        if bool(self.store) == bool(self.namesrv):
            raise BadSettings("where to? Give either --to-store DIR or --to-namesrv HOST:PORT")
        if self.store:
            StoreTarget.of(self.options())
        else:
            ClusterTarget.of(self.options())

    def options(self) -> Options:
        """As the sink takes them."""
        return Options(
            path=(str(Path(self.store).absolute()),) if self.store else (),
            namesrv=self.namesrv,
            config=self.config,
            access_key=self.access_key,
            secret_key=self.secret_key,
            producer_group="penstock-replay",
        )

    @property
    def label(self) -> str:
        """The target in a sentence, and in names that are made of it."""
        return str(Path(self.store).absolute()) if self.store else self.namesrv

    def progress(self, name: str, folder: str = "") -> Path:
        """The folder of a replay. Raises BadSettings for a name that cannot be one of a folder."""
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise BadSettings(f"--name '{name}': letters, digits, '.', '_' and '-' are allowed")
        if folder:
            return Path(folder).absolute() / name
        if self.store:
            return Path(self.store).absolute() / "penstock" / "replay" / name
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(state) / "penstock" / "replay" / name
