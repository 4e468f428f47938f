"""`penstock pipeline export`: messages as Parquet, JSON lines, a Delta table or an Iceberg table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.options import AsJson, Config, Pairs, option
from penstock.cli.output import add_row, say, show, table, write, write_json
from penstock.cli.spark import Confs, Master, MaybeNamesrv, Stores, check, milliseconds, place, session
from penstock.errors import BadSettings

if TYPE_CHECKING:
    from penstock.pipeline.jobs.export import Exported


def export(
    to: Annotated[str, option("--to", "DIR", "The folder to export to.")],
    stores: Stores = None,
    namesrv: MaybeNamesrv = "",
    form: Annotated[str, option("--format", "F", "parquet (if not given), json, delta or iceberg.")] = "parquet",
    topics: Annotated[
        list[str] | None, option("--topic", "T", "Only this topic; repeatable. Otherwise all but the broker's own.")
    ] = None,
    since: Annotated[str, option("--since", "TIME", "Stored at or after: 2026-11-16T08:00, or milliseconds.")] = "",
    until: Annotated[str, option("--until", "TIME", "Stored before; with --once.")] = "",
    decode: Annotated[str, option("--decode", "KIND", "Decode bodies: text, json, avro or protobuf.")] = "",
    schema: Annotated[
        Path | None,
        option("--schema", "FILE", "Avro schema, protobuf descriptor set, or columns such as `id bigint` for JSON."),
    ] = None,
    message: Annotated[str, option("--message", "NAME", "Protobuf: the message's full name.")] = "",
    once: Annotated[
        bool, typer.Option("--once/--incremental", help="What is there now, instead of going on with the last run.")
    ] = False,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Go on where messages were deleted before they were exported.")
    ] = False,
    catalog: Annotated[str, option("--catalog", "NAME", "Iceberg: a catalog of pyiceberg's configuration.")] = "",
    name: Annotated[str, option("--table", "NS.NAME", "Iceberg: the table; penstock.messages if not given.")] = "",
    as_json: AsJson = False,
    master: Master = None,
    conf: Confs = None,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Write messages to files for others, by topic and day, and go on from there the next time.

    A run exports what came since the last one into the same folder: nothing is missing and nothing is there twice, also
    if a run was killed. What cannot be read or decoded is kept aside in DIR/_bad, with the reason. Exit status 0: done;
    2: it could not be run.

    Examples:

    \b
      penstock pipeline export --store data/store --to lake/messages
      penstock pipeline export --namesrv 127.0.0.1:9876 --topic orders --decode json --format delta --to lake/orders
      penstock pipeline export --store '/stores/*' --once --since 2026-11-15 --until 2026-11-16 --format json --to day
    """
    from penstock.pipeline.decode import Decode
    from penstock.pipeline.jobs.export import Export
    from penstock.pipeline.jobs.export import export as run

    where = place(stores, namesrv, config, pairs)
    if (schema or message) and not decode:
        raise BadSettings("--schema and --message say how bodies are decoded: give --decode KIND with them")
    wish = Export(
        to=to,
        format=form,
        topics=tuple(topics or ()),
        since_ms=milliseconds("--since", since),
        until_ms=milliseconds("--until", until),
        decode=Decode.of(decode, schema, message) if decode else None,
        once=once,
        allow_loss=allow_loss,
        catalog=catalog,
        **({"table": name} if name else {}),
    )
    wish.check()
    check(where, wish.topics)
    with session("export", master, conf) as spark:
        done = run(spark, wish, where)
    if as_json:
        write_json(msgspec.to_builtins(done))
    else:
        _show(done)


def _show(done: Exported) -> None:
    if done.by_topic:
        made = table("Exported", "topic", "messages", right=("messages",))
        for topic, count in done.by_topic.items():
            add_row(made, topic, count)
        show(made)
    write(f"\n{done.rows} messages in {done.files} files of {done.batches} batches; {done.all_rows} in {done.to} now\n")
    if done.undecoded:
        say(f"{done.undecoded} messages did not decode; they are in {done.to}/_bad, with the reason")
    if done.unread:
        say(f"{done.unread} messages could not be read; {done.to}/_bad says where and why")
