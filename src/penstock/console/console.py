"""What the pages and the API are made from: one cluster, and everything that looks at it or changes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.client.admin import Admin
from penstock.client.config import ClientConfig
from penstock.console.cluster_view import ClusterView
from penstock.console.commands import Changes
from penstock.console.health import Parent
from penstock.console.history import History
from penstock.console.jobs import EXPORT_FOLDER, FORMS, Job, Jobs, arguments_of, staging_folder
from penstock.console.message_search import Finder
from penstock.errors import BadRequest

_STORE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """How the console was started."""

    config: ClientConfig
    store: Path | None = None
    """A store on this machine, to look into and to run jobs on."""
    broker_conf: Path | None = None
    exports: Path | None = None
    """The folder in which exports have theirs."""
    spark: tuple[str, ...] = ()
    """Options of the pipeline's jobs: --master, --conf."""


class Console:
    """All parts. To be made where the loop runs; `close` ends jobs and connections."""

    def __init__(self, options: ConsoleOptions) -> None:
        self.options = options
        self.admin = Admin(options.config)
        self.view = ClusterView(self.admin)
        self.history = History(self.view)
        self.finder = Finder(self.view)
        self.changes = Changes(self.view, options.config)
        self.jobs = Jobs()
        self.parent = Parent()

    async def close(self) -> None:
        await self.jobs.close()
        await self.changes.close()
        await self.admin.close()

    # -- the store on this machine -----------------------------------------------------------------------------

    async def store_info(self) -> dict[str, Any]:
        """What `penstock store info` says. Raises BadRequest without a store, PenstockError if it cannot be read."""
        found: dict[str, Any] = await self.view.cache.get("store", lambda: self._ask_store("info"), _STORE_S)
        return found

    async def store_outlook(self) -> dict[str, Any]:
        """What `penstock store retention --dry-run` says."""
        found: dict[str, Any] = await self.view.cache.get(
            "outlook", lambda: self._ask_store("retention", "--dry-run"), _STORE_S
        )
        return found

    async def _ask_store(self, verb: str, *more: str) -> Any:
        if self.options.store is None:
            raise BadRequest("this console knows no store on this machine; start it with --store DIR")
        return await self.jobs.ask("store", verb, str(self.options.store), *self._conf(), *more, "--json")

    def _conf(self) -> list[str]:
        return [] if self.options.broker_conf is None else [f"--config={self.options.broker_conf}"]

    # -- jobs ------------------------------------------------------------------------------------------------

    def start_job(self, verb: str, given: dict[str, str]) -> Job:
        """Starts one of the pipeline's jobs on the store, or, if there is none here, on the cluster."""
        given = dict(given)
        name = given.pop(EXPORT_FOLDER, "messages") if verb == "export" else ""
        arguments = arguments_of(verb, given)
        if name:
            arguments.append(f"--to={staging_folder(self.options.exports, name)}")
        if self.options.store is not None:
            where = [f"--store={self.options.store}", *self._conf()]
        elif FORMS[verb].over_network:
            where = [f"--namesrv={self.options.config.namesrv}"]
        else:
            raise BadRequest(f"job {verb} reads a store; start the console with --store DIR")
        return self.jobs.start(verb, [*where, *arguments, *self.options.spark])
