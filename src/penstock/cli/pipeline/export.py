"""`penstock export` and `penstock pipeline export`: messages as Parquet, JSON lines, Delta or Iceberg tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.options import option
from penstock.cli.output import add_row, show, table, write, write_json, write_note
from penstock.cli.verbs_on_spark import (
    EitherCall,
    JobCall,
    MaybeNamesrv,
    Paths,
    Stores,
    check_input,
    either_way,
    on_spark,
    time_option,
)
from penstock.errors import BadSettings

if TYPE_CHECKING:
    from penstock.pipeline.jobs.export import Export, Exported


To = Annotated[str, option("--to", "DIR", "The directory to export to.")]
Form = Annotated[str, option("--format", "F", "parquet (default), json, delta or iceberg.")]
Topics = Annotated[
    list[str] | None, option("--topic", "T", "Only this topic; repeatable. Default: all but the broker's own.")
]
Since = Annotated[str, option("--since", "TIME", "Stored at or after: 2026-11-16T08:00, or milliseconds.")]
Until = Annotated[str, option("--until", "TIME", "Stored before this time; needs --once.")]
DecodeKind = Annotated[str, option("--decode", "KIND", "Decode bodies: text, json, avro or protobuf.")]
SchemaFile = Annotated[
    Path | None,
    option("--schema", "FILE", "Avro schema, protobuf descriptor set, or columns such as `id bigint` for JSON."),
]
MessageName = Annotated[str, option("--message", "NAME", "Protobuf: the message's full name.")]
Once = Annotated[
    bool, typer.Option("--once/--incremental", help="Export what exists now, or resume after the last run.")
]
AllowLoss = Annotated[
    bool, typer.Option("--allow-loss", help="Continue if messages were deleted before they were exported.")
]
Catalog = Annotated[str, option("--catalog", "NAME", "Iceberg: a catalog from pyiceberg's configuration.")]
TableName = Annotated[str, option("--table", "NS.NAME", "Iceberg: the table; default: penstock.messages.")]


@on_spark
def export(
    call: JobCall,
    to: To,
    stores: Stores = None,
    namesrv: MaybeNamesrv = "",
    form: Form = "parquet",
    topics: Topics = None,
    since: Since = "",
    until: Until = "",
    decode: DecodeKind = "",
    schema: SchemaFile = None,
    message: MessageName = "",
    once: Once = False,
    allow_loss: AllowLoss = False,
    catalog: Catalog = "",
    name: TableName = "",
) -> None:
    """Export messages incrementally to files or tables.

    By topic and day. Each run exports what was stored since the last one into the same directory, exactly once, even if
    a run was killed. Messages that cannot be read or decoded go to DIR/_bad, with the reason. Exit status 0: done; 2:
    could not run.

    Examples:

    \b
      penstock pipeline export --store data/store --to lake/messages
      penstock pipeline export --namesrv 127.0.0.1:9876 --topic orders --decode json --format delta --to lake/orders
      penstock pipeline export --store '/stores/*' --once --since 2026-11-15 --until 2026-11-16 --format json --to day
    """
    from penstock.pipeline.jobs.export import export as run

    where = call.input(stores, namesrv)
    job = _spec(to, form, topics, since, until, decode, schema, message, once, allow_loss, catalog, name)
    check_input(where, job.topics)
    with call.session("export") as spark:
        done = run(spark, job, where)
    write_json(msgspec.to_builtins(done)) if call.as_json else _show(done)


@either_way
def export_stores(
    call: EitherCall,
    paths: Paths,
    to: To,
    form: Form = "parquet",
    topics: Topics = None,
    since: Since = "",
    until: Until = "",
    decode: DecodeKind = "",
    schema: SchemaFile = None,
    message: MessageName = "",
    once: Once = False,
    allow_loss: AllowLoss = False,
    catalog: Catalog = "",
    name: TableName = "",
) -> None:
    """Export messages of stores to files or tables.

    By topic and day, exactly once, even if a run was killed. With --once, what exists now: in this process if the logs
    are small, and otherwise on Spark. Without it, each run exports what was stored since the last one, and Spark keeps
    the position. Stderr says where it runs. Messages that cannot be read or decoded go to DIR/_bad, with the reason.
    Exit status 0: done; 2: could not run.

    Examples:

    \b
      penstock export data/store --once --to lake/messages
      penstock export data/store --once --format json --topic orders --since 2026-11-15 --to day
      penstock export data/store --to lake/each-night
    """
    from penstock.pipeline.jobs.export import export as run
    from penstock.pipeline.jobs.export import export_here, needs_spark

    where = call.input(paths)
    job = _spec(to, form, topics, since, until, decode, schema, message, once, allow_loss, catalog, name)
    check_input(where, job.topics)
    if call.uses_spark("export", where.folders().values(), needs_spark(job)):
        with call.session("export") as spark:
            done = run(spark, job, where)
    else:
        done = export_here(job, where)
    write_json(msgspec.to_builtins(done)) if call.as_json else _show(done)


def _spec(
    to: str,
    form: str,
    topics: Sequence[str] | None,
    since: str,
    until: str,
    decode: str,
    schema: Path | None,
    message: str,
    once: bool,
    allow_loss: bool,
    catalog: str,
    name: str,
) -> Export:
    """Returns the export that the options describe. Raises BadSettings or MissingPackage."""
    from penstock.pipeline.decode import Decode
    from penstock.pipeline.jobs.export import Export

    if (schema or message) and not decode:
        raise BadSettings("--schema and --message need --decode: give --decode KIND with them")
    job = Export(
        to=to,
        format=form,
        topics=tuple(topics or ()),
        since_ms=time_option("--since", since),
        until_ms=time_option("--until", until),
        decode=Decode.of(decode, schema, message) if decode else None,
        once=once,
        allow_loss=allow_loss,
        catalog=catalog,
        **({"table": name} if name else {}),
    )
    job.check()
    return job


def _show(done: Exported) -> None:
    if done.by_topic:
        grid = table("Exported", "topic", "messages", right=("messages",))
        for topic, count in done.by_topic.items():
            add_row(grid, topic, count)
        show(grid)
    total = f"{done.all_rows} in {done.to} in total"
    write(f"\n{done.rows} messages in {done.files} files of {done.batches} batches; {total}\n")
    if done.undecoded:
        write_note(f"{done.undecoded} messages did not decode; they are in {done.to}/_bad, with the reason")
    if done.unread:
        write_note(f"{done.unread} messages could not be read; {done.to}/_bad says where and why")
