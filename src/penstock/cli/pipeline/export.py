"""`penstock pipeline export`: messages as Parquet, JSON lines, a Delta table or an Iceberg table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.options import option
from penstock.cli.output import add_row, show, table, write, write_json, write_note
from penstock.cli.spark import JobCall, MaybeNamesrv, Stores, check_input, on_spark, time_option
from penstock.errors import BadSettings

if TYPE_CHECKING:
    from penstock.pipeline.jobs.export import Exported


@on_spark
def export(
    call: JobCall,
    to: Annotated[str, option("--to", "DIR", "The directory to export to.")],
    stores: Stores = None,
    namesrv: MaybeNamesrv = "",
    form: Annotated[str, option("--format", "F", "parquet (default), json, delta or iceberg.")] = "parquet",
    topics: Annotated[
        list[str] | None, option("--topic", "T", "Only this topic; repeatable. Default: all but the broker's own.")
    ] = None,
    since: Annotated[str, option("--since", "TIME", "Stored at or after: 2026-11-16T08:00, or milliseconds.")] = "",
    until: Annotated[str, option("--until", "TIME", "Stored before this time; needs --once.")] = "",
    decode: Annotated[str, option("--decode", "KIND", "Decode bodies: text, json, avro or protobuf.")] = "",
    schema: Annotated[
        Path | None,
        option("--schema", "FILE", "Avro schema, protobuf descriptor set, or columns such as `id bigint` for JSON."),
    ] = None,
    message: Annotated[str, option("--message", "NAME", "Protobuf: the message's full name.")] = "",
    once: Annotated[
        bool, typer.Option("--once/--incremental", help="Export what exists now, or resume after the last run.")
    ] = False,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Continue if messages were deleted before they were exported.")
    ] = False,
    catalog: Annotated[str, option("--catalog", "NAME", "Iceberg: a catalog from pyiceberg's configuration.")] = "",
    name: Annotated[str, option("--table", "NS.NAME", "Iceberg: the table; default: penstock.messages.")] = "",
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
    from penstock.pipeline.decode import Decode
    from penstock.pipeline.jobs.export import Export
    from penstock.pipeline.jobs.export import export as run

    where = call.input(stores, namesrv)
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
    check_input(where, job.topics)
    with call.session("export") as spark:
        done = run(spark, job, where)
    if call.as_json:
        write_json(msgspec.to_builtins(done))
    else:
        _show(done)


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
