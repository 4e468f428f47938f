"""`penstock pipeline replay` and `penstock pipeline import`: messages back into topics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer

from penstock.cli.network import read_account
from penstock.cli.options import AsJson, Config, Pairs, number, option
from penstock.cli.output import add_row, plain, say, show, table, write, write_json
from penstock.cli.spark import Confs, Master, MaybeNamesrv, Stores, check, milliseconds, place, session
from penstock.errors import BadSettings

if TYPE_CHECKING:
    from penstock.pipeline.jobs.replay import Mapping, Replayed, ReplaySource, Target

ToStore: TypeAlias = Annotated[str, option("--to-store", "DIR", "Into this store, which nobody else may have open.")]
ToNamesrv: TypeAlias = Annotated[str, option("--to-namesrv", "HOST:PORT", "Into a cluster, by its name servers.")]
ToTopic: TypeAlias = Annotated[str, option("--to-topic", "T", "Into this topic; otherwise the one that a row names.")]
ToConfig: TypeAlias = Annotated[Path | None, option("--to-config", "FILE", "The broker.conf of --to-store.")]
ToAccount: TypeAlias = Annotated[
    Path | None, option("--to-account", "FILE", "A file with accessKey and secretKey for --to-namesrv.")
]
Maps: TypeAlias = Annotated[
    list[str] | None, option("--map", "COLUMN=SQL", "Make a column of the message, as in tags=upper(tags); repeatable.")
]
Filter: TypeAlias = Annotated[str, option("--filter", "SQL", "Only rows for which this holds.")]
Rate: TypeAlias = Annotated[int | None, number("--rate", "N", "At most so many messages a second.", low=1)]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")]
Name: TypeAlias = Annotated[str, option("--name", "NAME", "What it is known by; made of the options otherwise.")]
Progress: TypeAlias = Annotated[str, option("--progress", "DIR", "Where to keep how far it is.")]


def replay(
    given: Annotated[str, option("--from", "export:DIR", "An export.")] = "",
    stores: Stores = None,
    namesrv: MaybeNamesrv = "",
    topics: Annotated[list[str] | None, option("--topic", "T", "Messages of this topic; repeatable.")] = None,
    group: Annotated[str, option("--dead-letters", "GROUP", "What this consumer group could not consume.")] = "",
    since: Annotated[str, option("--since", "TIME", "Stored at or after: 2026-11-16T08:00, or milliseconds.")] = "",
    until: Annotated[str, option("--until", "TIME", "Stored before.")] = "",
    keys: Annotated[list[str] | None, option("--key", "K", "A key or unique key; repeatable: any of them.")] = None,
    where: Filter = "",
    maps: Maps = None,
    to_store: ToStore = "",
    to_namesrv: ToNamesrv = "",
    to_topic: ToTopic = "",
    to_config: ToConfig = None,
    to_account: ToAccount = None,
    rate: Rate = None,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Go on where messages were deleted before they were replayed.")
    ] = False,
    dry_run: DryRun = False,
    name: Name = "",
    progress: Progress = "",
    as_json: AsJson = False,
    master: Master = None,
    conf: Confs = None,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Bring messages back into topics: those of an export, of a topic, or dead letters.

    The same command again goes on where it ended, and sends nothing twice: into a store in any case, into a cluster
    unless a run was killed (then what it was sending comes again, with the same unique keys). Dead letters go to the
    topic that they came from. Exit status 0: done; 2: it could not be run.

    Examples:

    \b
      penstock pipeline replay --from export:lake/messages --to-store data/copy
      penstock pipeline replay --store data/store --topic orders --since 2026-11-15 --to-namesrv 10.0.0.1:9876
      penstock pipeline replay --namesrv 127.0.0.1:9876 --dead-letters billing --to-namesrv 127.0.0.1:9876 --dry-run
    """
    from penstock.pipeline.jobs.replay import dead_letters, from_export, from_input

    begin, end = milliseconds("--since", since), milliseconds("--until", until)
    kind, _, folder = given.partition(":")
    if given and (kind != "export" or not folder):
        raise BadSettings(f"--from '{given}': it must be export:DIR; files of others come in by `pipeline import`")
    if sum(map(bool, (given, group, topics))) != 1:
        raise BadSettings("what is replayed? Give one of --from export:DIR, --topic T and --dead-letters GROUP")
    place_ = place(stores, namesrv, config, pairs)
    source = (
        from_export(folder)
        if given
        else dead_letters(place_, group, since_ms=begin, allow_loss=allow_loss)
        if group
        else from_input(place_, *(topics or ()), since_ms=begin, allow_loss=allow_loss)
    )
    mapping = _mapping(to_topic, where, maps, keys=tuple(keys or ()), since_ms=begin, until_ms=end)
    target = _target(to_store, to_namesrv, to_config, to_account)
    _run("replay", source, target, mapping, name, rate, dry_run, progress, as_json, master, conf)


def import_files(
    folder: Annotated[str, option("--from", "DIR", "The folder with the files.")],
    form: Annotated[str, option("--format", "F", "parquet (if not given) or json.")] = "parquet",
    where: Filter = "",
    maps: Maps = None,
    to_store: ToStore = "",
    to_namesrv: ToNamesrv = "",
    to_topic: ToTopic = "",
    to_config: ToConfig = None,
    to_account: ToAccount = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    name: Name = "",
    progress: Progress = "",
    as_json: AsJson = False,
    master: Master = None,
    conf: Confs = None,
) -> None:
    """Bring rows of Parquet files or JSON lines into topics.

    They have a column `body` or `value`, or --map makes one. A file is taken once: the same command again takes those
    that are new. Exit status 0: done; 2: it could not be run.

    Examples:

    \b
      penstock pipeline import --from files --to-topic orders --to-store data/store
      penstock pipeline import --from files --format json --map 'body=to_json(struct(*))' --to-topic t --to-store data
    """
    from penstock.pipeline.jobs.replay import from_files

    mapping, target = _mapping(to_topic, where, maps), _target(to_store, to_namesrv, to_config, to_account)
    source = from_files(folder, form)
    _run("import", source, target, mapping, name, rate, dry_run, progress, as_json, master, conf)


def _mapping(
    to_topic: str,
    where: str,
    maps: Sequence[str] | None,
    *,
    keys: tuple[str, ...] = (),
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> Mapping:
    from penstock.pipeline.jobs.replay import Mapping

    return Mapping(
        to_topic=to_topic, where=where, maps=tuple(maps or ()), keys=keys, since_ms=since_ms, until_ms=until_ms
    )


def _target(store: str, namesrv: str, config: Path | None, account: Path | None) -> Target:
    from penstock.pipeline.jobs.replay import Target

    given = read_account(account) if account else None
    return Target(
        store=store,
        namesrv=namesrv,
        config=str(config) if config else "",
        access_key=given.access_key if given else "",
        secret_key=given.secret_key if given else "",
    )


def _run(
    job: str,
    source: ReplaySource,
    target: Target,
    mapping: Mapping,
    name: str,
    rate: int | None,
    dry_run: bool,
    progress: str,
    as_json: bool,
    master: str | None,
    conf: Sequence[str] | None,
) -> None:
    from penstock.pipeline.jobs.replay import check_replay
    from penstock.pipeline.jobs.replay import replay as run

    check_replay(source, target, mapping, rate)
    if not source.folder:
        check(source.job_input, source.topics)
    with session(job, master, conf) as spark:
        done = run(spark, source, target, mapping, name=name, rate=rate, dry_run=dry_run, progress=progress)
    if as_json:
        write_json(msgspec.to_builtins(done))
    else:
        _show(done, dry_run)


def _show(done: Replayed, dry_run: bool) -> None:
    if done.by_topic:
        made = table("Would be sent", "topic", "messages", right=("messages",))
        for topic, count in done.by_topic.items():
            add_row(made, topic, count)
        show(made)
    for row in done.first:
        write(plain("  ".join(f"{name}={value}" for name, value in row.items())) + "\n")
    verb = "would be sent" if dry_run else "sent"
    write(f"{done.read} read, {done.filtered} filtered out, {done.sent} {verb}, {done.unread} passed over, ")
    write(f"{done.aside} kept aside\n")
    if done.unread:
        say(f"{done.unread} messages could not be read and were passed over; `penstock store verify` says why")
    if done.aside and not dry_run:
        say(f"{done.aside} messages cannot be sent; they are in {done.progress}/aside, with the reason")
    if not dry_run:
        say(f"this replay is '{done.name}'; the same command goes on where it ended ({done.progress})")
