"""The folder of a lake: its settings, its tables, and the files that Spark needs.

The user edits `lake.yml` and the files in `transformations`. The other folders are Spark's: `conf` has its settings,
`catalog` the catalog, `tables` the files of the tables, and `storage` the checkpoints.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from penstock.broker.topics import is_system_topic
from penstock.errors import BadSettings, BadStore
from penstock.format.constants import DLQ_PREFIX, RETRY_PREFIX
from penstock.format.msgspec_warm_up import prepared
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.scan_plan import open_source
from penstock.pipeline.session import LOOPBACK

# -- files of a new lake ---------------------------------------------------------------------------------------------

OWN_SETTINGS: Final = {
    "spark.sql.catalogImplementation": "hive",
    "spark.sql.warehouse.dir": "{folder}/tables",
    "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName={folder}/catalog/metastore;create=true",
    "spark.driver.extraJavaOptions": "-Dderby.system.home={folder}/catalog",
    **LOOPBACK,
    "spark.driver.memory": "2g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Spark settings that take effect only when a session starts. They must not be in `spark-pipeline.yml`."""
SPEC: Final = """\
name: {name}
storage: {storage}
catalog: spark_catalog
database: default
libraries:
  - glob:
      include: transformations/**
"""
LAKE_FILE: Final = """\
# The input of this lake, and the topics that get a table. Edit it; the next run applies it.
#   topics:
#     orders: {{decode: json, schema: "id INT, amount DOUBLE"}}   # without a schema, any JSON
#     clicks: {{decode: text}}
#     images: {{decode: none}}
# `fail_on_data_loss: false` continues if retention has deleted messages before they were read.
{content}"""
LOGGING: Final = """\
# The run itself reports errors; set this to error to see Spark's traces.
rootLogger.level = off
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""
_RAW: Final = '''\
"""Every message as it arrived: the source of the other tables."""

from pyspark import pipelines as dp

from penstock.pipeline.lake import Lake, tables

here = Lake.here()


@dp.table(comment="Every message as it arrived; _corrupt says why one cannot be read")
def messages():
    return tables.messages(here)
'''
_TOPICS: Final = '''\
"""A table for each topic of lake.yml, with decoded bodies; undecodable messages go to bad_messages."""

from pyspark import pipelines as dp

from penstock.pipeline.lake import Lake, tables

here = Lake.here()

for topic in here.topics:

    @dp.table(name=topic.table, comment=f"Messages of {topic.topic}")
    def decoded(topic=topic):
        return tables.decoded(topic)


@dp.table(comment="Messages that cannot be read or decoded, and why")
def bad_messages():
    return tables.bad_messages(here)
'''
_VIEWS: Final = '''\
"""Common queries, recomputed with each run."""

from pyspark import pipelines as dp

from penstock.pipeline.lake import Lake, tables

here = Lake.here()


@dp.materialized_view(comment="Messages and bytes by topic, queue and day")
def usage():
    return tables.usage()


@dp.materialized_view(comment="Milliseconds from send to store, by topic and hour")
def latency():
    return tables.latency()


@dp.materialized_view(comment="Consumer lag, as of the run")
def consumer_lag():
    return tables.consumer_lag(here)
'''
TRANSFORMATIONS: Final = {"raw.py": _RAW, "topics.py": _TOPICS, "views.py": _VIEWS}


# -- the lake --------------------------------------------------------------------------------------------------------

FILE: Final = "lake.yml"
SPEC_FILE: Final = "spark-pipeline.yml"
DECODERS: Final = ("json", "text", "none")


class LakeTable(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that has its own table."""

    topic: str
    decode: str = "none"
    """How to decode the body: json, text, or none."""
    schema: str = ""
    """Columns of a JSON body in DDL (`id INT, name STRING`); empty for any JSON."""

    @property
    def table(self) -> str:
        """The table's name. Characters that are not allowed in it become underscores."""
        return f"topic_{re.sub('[^a-z0-9_]', '_', self.topic.lower())}"


class Lake(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in `lake.yml`."""

    folder: str
    store: str = ""
    namesrv: str = ""
    config: str = ""
    fail_on_data_loss: bool = True
    topics: tuple[LakeTable, ...] = ()

    @classmethod
    def here(cls) -> Lake:
        """Reads the lake in the current folder. Spark runs the table definitions in the lake's folder."""
        return cls.read(Path.cwd())

    @classmethod
    def read(cls, folder: Path) -> Lake:
        """Reads the `lake.yml` of a folder. Raises BadSettings if the file is missing or invalid."""
        path = folder.absolute() / FILE
        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise BadSettings(
                f"it has no {FILE}, so this is not a lake; create one with `penstock pipeline lake init`",
                path=folder,
            ) from None
        except yaml.YAMLError as error:
            raise BadSettings(f"it must be YAML, and is not: {' '.join(str(error).split())}", path=path) from None
        try:
            lake = msgspec.convert({**_fields(document), "folder": str(path.parent)}, prepared(cls))
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise BadSettings(f"{error}", path=path) from None
        lake._check(path)
        return lake

    def _check(self, path: Path) -> None:
        if bool(self.store) == bool(self.namesrv):
            raise BadSettings("it must name either a store or a namesrv", path=path)
        tables: dict[str, str] = {}
        for each in self.topics:
            if each.decode not in DECODERS:
                raise BadSettings(
                    f"topic {each.topic}: decode is '{each.decode}', and must be one of {', '.join(DECODERS)}",
                    path=path,
                )
            if each.schema and each.decode != "json":
                raise BadSettings(f"topic {each.topic}: a schema needs decode: json", path=path)
            if each.table in tables:
                raise BadSettings(
                    f"topics {tables[each.table]} and {each.topic} would have the same table; leave one of them out",
                    path=path,
                )
            tables[each.table] = each.topic

    @property
    def job_input(self) -> JobInput:
        return JobInput(stores=(self.store,) if self.store else (), namesrv=self.namesrv, config=self.config)

    @property
    def spark_settings(self) -> dict[str, str]:
        """The session settings for this lake's catalog and tables."""
        return {name: value.replace("{folder}", self.folder) for name, value in OWN_SETTINGS.items()}

    def user_topics(self) -> list[str]:
        """Returns all topics of the input except system topics. Raises BadStore or Unreachable."""
        options = self.job_input.options(subscribe_pattern=re.compile(".*"))
        source = open_source(options)
        try:
            return [topic for topic in source.topics() if not is_system_topic(topic)]
        finally:
            source.close()


def _fields(document: Any) -> dict[str, Any]:
    """Returns the content of `lake.yml` as fields of a Lake. Raises ValueError."""
    if not isinstance(document, dict):
        raise ValueError("it must name the input of the lake: store or namesrv, and topics")
    known = {field.name for field in msgspec.structs.fields(Lake)} - {"folder"}
    unknown = sorted(set(map(str, document)) - known)
    if unknown:
        raise ValueError(f"there is no setting '{unknown[0]}'; there are {', '.join(sorted(known))}")
    topics = document.get("topics") or {}
    if not isinstance(topics, dict):
        raise ValueError("topics must be names with what they hold, as in `orders: {decode: json}`")
    return {
        **{name: value for name, value in document.items() if value is not None},
        "topics": [{**(what or {}), "topic": str(name)} for name, what in topics.items()],
    }


def init_project(folder: Path, job_input: JobInput, decode: str = "none") -> Lake:
    """Creates the project's folder, with a table for each existing user topic except retry and dead-letter topics.

    `decode` is how these tables decode bodies. Raises BadSettings, also if the folder is not empty, BadStore or
    Unreachable.
    """
    job_input.check()
    if decode not in DECODERS:
        raise BadSettings(f"--decode '{decode}': it must be one of {', '.join(DECODERS)}")
    if len(job_input.stores) > 1:
        raise BadSettings("a lake has one input: give either --store DIR once or --namesrv HOST:PORT")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadSettings("this folder is not empty; a lake needs a new or empty folder", path=folder)
    folder = folder.absolute()
    store = str(Path(job_input.stores[0]).absolute()) if job_input.stores else ""
    config = str(Path(job_input.config).absolute()) if job_input.config else ""
    lake = Lake(folder=str(folder), store=store, namesrv=job_input.namesrv, config=config)
    chosen = [topic for topic in lake.user_topics() if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]
    lake = msgspec.structs.replace(lake, topics=tuple(LakeTable(topic=topic, decode=decode) for topic in chosen))
    lake._check(folder / FILE)
    _write(lake, folder)
    return lake


def _write(lake: Lake, folder: Path) -> None:
    from_ = {"store": lake.store} if lake.store else {"namesrv": lake.namesrv}
    if lake.config:
        from_["config"] = lake.config
    topics = {each.topic: {"decode": each.decode} for each in lake.topics}
    content = yaml.safe_dump(from_, sort_keys=False) + yaml.safe_dump({"topics": topics}, sort_keys=False)
    for name in ("transformations", "conf", "catalog"):
        (folder / name).mkdir(parents=True)
    for name, text in TRANSFORMATIONS.items():
        (folder / "transformations" / name).write_text(text, encoding="utf-8")
    settings = "".join(f"{name} {value}\n" for name, value in lake.spark_settings.items())
    (folder / "conf" / "spark-defaults.conf").write_text(settings, encoding="utf-8")
    (folder / "conf" / "log4j2.properties").write_text(LOGGING, encoding="utf-8")
    name = re.sub("[^A-Za-z0-9_]", "_", folder.name) or "lake"
    (folder / SPEC_FILE).write_text(SPEC.format(name=name, storage=(folder / "storage").as_uri()), encoding="utf-8")
    (folder / FILE).write_text(LAKE_FILE.format(content=content), encoding="utf-8")


def check_initialised(folder: Path) -> Lake:
    """Reads and checks a lake before a run. Raises BadSettings, or BadStore if the lake's store does not exist."""
    lake = Lake.read(folder)
    for name in (SPEC_FILE, "transformations"):
        if not (folder / name).exists():
            raise BadSettings(
                f"{name} is missing; create the lake again with `penstock pipeline lake init`", path=folder
            )
    if lake.store and not Path(lake.store).is_dir():
        raise BadStore(f"there is no store here; correct the path in {FILE} of {folder}", path=lake.store)
    return lake
