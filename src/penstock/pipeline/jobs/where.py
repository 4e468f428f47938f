"""Where the messages are that a job goes over: the files of stores, or a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import BadSettings
from penstock.pipeline.options import Options
from penstock.pipeline.store_place import find_paths, name_stores
from penstock.store.folder import StoreFolder


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Stores by their folders or globs, with a broker.conf and settings that hold for all of them; or name servers."""

    stores: tuple[str, ...] = ()
    namesrv: str = ""
    config: str = ""
    settings: tuple[str, ...] = ()
    """`name=value` by RocketMQ's names; they win over `config`."""

    def check(self, *, only_stores: bool = False) -> None:
        """Raises BadSettings unless exactly one kind of place is named."""
        if only_stores and not self.stores:
            raise BadSettings("which stores? Name them with --store DIR")
        if bool(self.stores) == bool(self.namesrv):
            raise BadSettings("where? Give either --store DIR or --namesrv HOST:PORT")

    def options(self, **changes: Any) -> Options:
        """The source's options for reading there; what is gone is passed over, and told by the job."""
        return Options(
            path=self.stores,
            namesrv=self.namesrv,
            config=self.config,
            settings=self.settings,
            fail_on_data_loss=False,
            **changes,
        )

    def folders(self) -> dict[str, StoreFolder]:
        """The stores' folders by the names that they have in results. Raises BadSettings, BadStore."""
        config = Path(self.config) if self.config else None
        return {
            name: StoreFolder.find(path, config, self.settings)
            for name, path in name_stores(find_paths(self.stores)).items()
        }
