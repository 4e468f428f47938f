"""All parts of the console in one object: the view of one cluster, and the parts that read or change the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.client.admin import Admin
from penstock.client.config import ClientConfig
from penstock.console.cluster_commands import ClusterCommands
from penstock.console.cluster_view import ClusterView
from penstock.console.health import Parent
from penstock.console.history import History
from penstock.console.jobs import EXPORT_FOLDER, FORMS, Job, Jobs, arguments_of, folder_of
from penstock.console.message_search import MessageSearch
from penstock.errors import BadRequest

_STORE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """The options that the console was started with."""

    config: ClientConfig
    store: Path | None = None
    """A store directory on this machine, for the Store page and for jobs."""
    broker_conf: Path | None = None
    exports: Path | None = None
    """The parent folder of all exports."""
    spark: tuple[str, ...] = ()
    """Spark options of jobs: --master, --conf."""


class Console:
    """All parts of the console. Create it on the event loop's thread. `close` ends its jobs and connections."""

    def __init__(self, options: ConsoleOptions) -> None:
        self.options = options
        self.admin = Admin(options.config)
        self.view = ClusterView(self.admin)
        self.history = History(self.view)
        self.search = MessageSearch(self.view)
        self.commands = ClusterCommands(self.view, options.config)
        self.jobs = Jobs()
        self.parent = Parent()

    async def close(self) -> None:
        await self.jobs.close()
        await self.commands.close()
        await self.admin.close()

    # -- the store on this machine -----------------------------------------------------------------------------

    async def store_info(self) -> dict[str, Any]:
        """Returns the output of `penstock store info`. Raises PenstockError, which is BadRequest if the console has no
        store.
        """
        info: dict[str, Any] = await self.view.cache.get("store", lambda: self._run_store_verb("info"), _STORE_S)
        return info

    async def store_outlook(self) -> dict[str, Any]:
        """Returns the output of `penstock store retention --dry-run`. Raises the errors of `store_info`."""
        outlook: dict[str, Any] = await self.view.cache.get(
            "outlook", lambda: self._run_store_verb("retention", "--dry-run"), _STORE_S
        )
        return outlook

    async def _run_store_verb(self, verb: str, *more: str) -> Any:
        if self.options.store is None:
            raise BadRequest("this console has no store; start it with --store DIR")
        return await self.jobs.run_json("store", verb, str(self.options.store), *self._conf(), *more, "--json")

    def _conf(self) -> list[str]:
        return [] if self.options.broker_conf is None else [f"--config={self.options.broker_conf}"]

    # -- jobs ------------------------------------------------------------------------------------------------

    def start_job(self, verb: str, given: dict[str, str]) -> Job:
        """Starts a Spark job on the console's store or, if it has none, on the cluster. Raises BadRequest."""
        given = dict(given)
        name = given.pop(EXPORT_FOLDER, "messages") if verb == "export" else ""
        arguments = arguments_of(verb, given)
        if name:
            arguments.append(f"--to={folder_of(self.options.exports, name)}")
        if self.options.store is not None:
            source = [f"--store={self.options.store}", *self._conf()]
        elif FORMS[verb].over_network:
            source = [f"--namesrv={self.options.config.namesrv}"]
        else:
            raise BadRequest(f"job {verb} needs a store; start the console with --store DIR")
        return self.jobs.start(verb, [*source, *arguments, *self.options.spark])
