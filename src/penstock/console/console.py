"""All parts of the console in one object: the view of one cluster, and the parts that read or change the cluster."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.client.admin import Admin
from penstock.client.config import ClientConfig
from penstock.console.cached_cluster import ClusterView
from penstock.console.chart_samples import ChartSamples
from penstock.console.cluster_commands import ClusterCommands
from penstock.console.health import Parent
from penstock.console.job_forms import EXPORT_FOLDER, FORMS, ON_SPARK, JobForm, arguments_of, folder_of
from penstock.console.job_processes import Job, Jobs
from penstock.console.message_search import MessageSearch
from penstock.errors import BadRequest
from penstock.optional_packages import how_to_install
from penstock.task_supervision import Supervisor

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
    """Spark options of jobs: --master, --conf. With any, all jobs run on Spark."""
    keep_spark_s: float = 0
    """Seconds for which a Spark session that a job started waits for the next job; 0: it ends with its job."""


class Console:
    """All parts of the console. Create it on the event loop's thread. `close` ends its tasks, jobs and connections."""

    def __init__(self, options: ConsoleOptions) -> None:
        self.options = options
        self.admin = Admin(options.config)
        self.view = ClusterView(self.admin)
        self.chart_samples = ChartSamples(self.view)
        self.search = MessageSearch(self.view)
        self.commands = ClusterCommands(self.view, options.config)
        self.jobs = Jobs(keep_s=options.keep_spark_s)
        self.parent = Parent()
        self.tasks = Supervisor(logging.getLogger("penstock.console"))

    async def close(self) -> None:
        await self.tasks.stop()
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
        """Starts a job on the console's store or, if it has none, on the cluster. Raises BadRequest.

        The short verb chooses between its own process and Spark, unless the form or the console's options ask for
        Spark.
        """
        given = dict(given)
        name = given.pop(EXPORT_FOLDER, "messages") if verb == "export" else ""
        asks_for_spark = given.pop(ON_SPARK, "") == "true"
        shown = arguments_of(verb, given)
        if name:
            shown.append(f"--to={folder_of(self.options.exports, name)}")
        way = self.spark_only(FORMS[verb]) or ("on Spark, as the form asks for" if asks_for_spark else "")
        spark = list(self.options.spark)
        if self.options.store is None:
            if not FORMS[verb].over_network:
                raise BadRequest(f"job {verb} needs a store; start the console with --store DIR")
            command = ["pipeline", verb, f"--namesrv={self.options.config.namesrv}"]
        else:
            command = [verb, str(self.options.store), *self._conf()]
            if asks_for_spark and not spark:
                spark = ["--master=local[*]"]
        if self.options.keep_spark_s > 0:
            spark.append("--keep-session")
        return self.jobs.start(verb, [*command, *shown, *spark, "--json"], shown, way)

    def spark_only(self, form: JobForm) -> str:
        """Returns why jobs of this form always run on Spark in this console; empty if they can run without it."""
        if self.options.spark:
            return f"on Spark, as the console's {self.options.spark[-1].partition('=')[0]} asks for"
        if self.options.store is None and form.over_network:
            return "on Spark, which reads from the cluster"
        return ""

    def missing_packages(self, form: JobForm) -> str:
        """Returns what a job of this form needs and is not installed, and how to install it; empty if all is there."""
        extra = "spark" if self.spark_only(form) else form.extra
        needs = how_to_install(extra) if extra else ""
        return f"{form.title} {needs}" if needs else ""
