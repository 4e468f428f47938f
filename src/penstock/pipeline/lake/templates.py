"""The files of a new lake. `transformations` are meant to be read and changed by whoever owns the lake."""

from __future__ import annotations

from typing import Final

from penstock.pipeline.connect_session import LOOPBACK

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
"""Static settings: they count when a session starts, and must not be in the pipeline's own file."""

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
# What this lake is made from, and which topics get a table of their own. Edit it; the next run goes by it.
#   topics:
#     orders: {{decode: json, schema: "id INT, amount DOUBLE"}}   # without a schema, any JSON
#     clicks: {{decode: text}}
#     images: {{decode: none}}
# `fail_on_data_loss: false` goes on where retention has deleted messages before they were read.
{told}"""

LOGGING: Final = """\
# What goes wrong is told by the run itself; set this to error to see Spark's own traces.
rootLogger.level = off
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""

_RAW: Final = '''\
"""Every message as it came: the table that the others are made from."""

from pyspark import pipelines as dp

from penstock.pipeline.lake import Lake, tables

here = Lake.here()


@dp.table(comment="Every message as it came; _corrupt says why one cannot be read")
def messages():
    return tables.messages(here)
'''

_TOPICS: Final = '''\
"""A table for each topic of lake.yml, with its bodies decoded; what cannot be decoded is kept aside."""

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
"""What people ask for most, computed anew with each run."""

from pyspark import pipelines as dp

from penstock.pipeline.lake import Lake, tables

here = Lake.here()


@dp.materialized_view(comment="Messages and bytes by topic, queue and day")
def usage():
    return tables.usage()


@dp.materialized_view(comment="Milliseconds from being sent to being stored, by topic and hour")
def latency():
    return tables.latency()


@dp.materialized_view(comment="How far consumer groups are behind, as of the run")
def consumer_lag():
    return tables.consumer_lag(here)
'''

TRANSFORMATIONS: Final = {"raw.py": _RAW, "topics.py": _TOPICS, "views.py": _VIEWS}
