"""`penstock pipeline replay` and `penstock pipeline import`: write messages or rows of files into topics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer

from penstock.cli.cluster_connection import read_account
from penstock.cli.options import AsJson, number, option
from penstock.cli.output import add_row, plain, show, table, write, write_json, write_note
from penstock.cli.verbs_on_spark import (
    Confs,
    JobCall,
    Master,
    MaybeNamesrv,
    Stores,
    check_input,
    on_spark,
    time_option,
)
from penstock.errors import BadSettings

if TYPE_CHECKING:
    from penstock.pipeline.jobs.replay import Mapping, Replayed, ReplaySource, Target

ToStore: TypeAlias = Annotated[str, option("--to-store", "DIR", "The target store; it must not be open.")]
ToNamesrv: TypeAlias = Annotated[str, option("--to-namesrv", "HOST:PORT", "The target cluster's name servers.")]
ToTopic: TypeAlias = Annotated[str, option("--to-topic", "T", "The target topic; default: the row's topic.")]
ToConfig: TypeAlias = Annotated[Path | None, option("--to-config", "FILE", "The broker.conf of --to-store.")]
ToAccount: TypeAlias = Annotated[
    Path | None, option("--to-account", "FILE", "A file with accessKey and secretKey for --to-namesrv.")
]
Maps: TypeAlias = Annotated[
    list[str] | None,
    option("--map", "COLUMN=SQL", "Compute a message column, as in tags=upper(tags); repeatable."),
]
Filter: TypeAlias = Annotated[str, option("--filter", "SQL", "Only rows that match this condition.")]
Rate: TypeAlias = Annotated[int | None, number("--rate", "N", "At most N messages per second.", low=1)]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Print what would be sent; send nothing.")]
Name: TypeAlias = Annotated[str, option("--name", "NAME", "The replay's name; default: derived from the options.")]
Progress: TypeAlias = Annotated[str, option("--progress", "DIR", "Where to keep the progress.")]


@on_spark
def replay(
    call: JobCall,
    given: Annotated[str, option("--from", "export:DIR", "Replay an export.")] = "",
    stores: Stores = None,
    namesrv: MaybeNamesrv = "",
    topics: Annotated[list[str] | None, option("--topic", "T", "Replay this topic; repeatable.")] = None,
    group: Annotated[str, option("--dead-letters", "GROUP", "The dead letters of this consumer group.")] = "",
    since: Annotated[str, option("--since", "TIME", "Stored at or after: 2026-11-16T08:00, or milliseconds.")] = "",
    until: Annotated[str, option("--until", "TIME", "Stored before.")] = "",
    keys: Annotated[list[str] | None, option("--key", "K", "Only this key or unique key; repeatable.")] = None,
    where: Filter = "",
    maps: Maps = None,
    to_store: ToStore = "",
    to_namesrv: ToNamesrv = "",
    to_topic: ToTopic = "",
    to_config: ToConfig = None,
    to_account: ToAccount = None,
    rate: Rate = None,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Continue if messages were deleted before they were replayed.")
    ] = False,
    dry_run: DryRun = False,
    name: Name = "",
    progress: Progress = "",
) -> None:
    """Replay an export, a topic or dead letters into topics.

    The same command resumes and sends nothing twice: exactly once into a store; into a cluster, a killed run may repeat
    the batch in flight, with the same unique keys. Dead letters go to their original topic. Exit status 0: done; 2:
    could not run.

    Examples:

    \b
      penstock pipeline replay --from export:lake/messages --to-store data/copy
      penstock pipeline replay --store data/store --topic orders --since 2026-11-15 --to-namesrv 10.0.0.1:9876
      penstock pipeline replay --namesrv 127.0.0.1:9876 --dead-letters billing --to-namesrv 127.0.0.1:9876 --dry-run
    """
    from penstock.pipeline.jobs.replay import dead_letters, from_export, from_input

    begin, end = time_option("--since", since), time_option("--until", until)
    kind, _, folder = given.partition(":")
    if given and (kind != "export" or not folder):
        raise BadSettings(f"--from '{given}': it must be export:DIR; use `pipeline import` for other files")
    if sum(map(bool, (given, group, topics))) != 1:
        raise BadSettings("replay what? Give one of --from export:DIR, --topic T and --dead-letters GROUP")
    given_input = call.input(stores, namesrv)
    source = (
        from_export(folder)
        if given
        else dead_letters(given_input, group, since_ms=begin, allow_loss=allow_loss)
        if group
        else from_input(given_input, *(topics or ()), since_ms=begin, allow_loss=allow_loss)
    )
    mapping = _mapping(to_topic, where, maps, keys=tuple(keys or ()), since_ms=begin, until_ms=end)
    target = _target(to_store, to_namesrv, to_config, to_account)
    _run("replay", call, source, target, mapping, name=name, rate=rate, dry_run=dry_run, progress=progress)


def import_files(
    folder: Annotated[str, option("--from", "DIR", "The directory with the files.")],
    form: Annotated[str, option("--format", "F", "parquet (default) or json.")] = "parquet",
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
    """Import rows of Parquet files or JSON lines into topics.

    Rows need a column `body` or `value`, or a --map that computes it. Each file is imported once: the next run of the
    same command imports only new files. Exit status 0: done; 2: could not run.

    Examples:

    \b
      penstock pipeline import --from files --to-topic orders --to-store data/store
      penstock pipeline import --from files --format json --map 'body=to_json(struct(*))' --to-topic t --to-store data
    """
    from penstock.pipeline.jobs.replay import from_files

    mapping, target = _mapping(to_topic, where, maps), _target(to_store, to_namesrv, to_config, to_account)
    source = from_files(folder, form)
    call = JobCall(as_json, master, conf)
    _run("import", call, source, target, mapping, name=name, rate=rate, dry_run=dry_run, progress=progress)


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

    credentials = read_account(account) if account else None
    return Target(
        store=store,
        namesrv=namesrv,
        config=str(config) if config else "",
        access_key=credentials.access_key if credentials else "",
        secret_key=credentials.secret_key if credentials else "",
    )


def _run(
    job: str,
    call: JobCall,
    source: ReplaySource,
    target: Target,
    mapping: Mapping,
    *,
    name: str,
    rate: int | None,
    dry_run: bool,
    progress: str,
) -> None:
    from penstock.pipeline.jobs.replay import check_replay
    from penstock.pipeline.jobs.replay import replay as run

    check_replay(source, target, mapping, rate)
    if not source.folder:
        check_input(source.job_input, source.topics)
    with call.session(job) as spark:
        done = run(spark, source, target, mapping, name=name, rate=rate, dry_run=dry_run, progress=progress)
    if call.as_json:
        write_json(msgspec.to_builtins(done))
    else:
        _show(done, dry_run)


def _show(done: Replayed, dry_run: bool) -> None:
    if done.by_topic:
        grid = table("Would be sent", "topic", "messages", right=("messages",))
        for topic, count in done.by_topic.items():
            add_row(grid, topic, count)
        show(grid)
    for row in done.first:
        write(plain("  ".join(f"{name}={value}" for name, value in row.items())) + "\n")
    verb = "would be sent" if dry_run else "sent"
    write(f"{done.read} read, {done.filtered} filtered out, {done.sent} {verb}, {done.unread} skipped, ")
    write(f"{done.aside} quarantined\n")
    if done.unread:
        write_note(f"{done.unread} messages could not be read and were skipped; `penstock store verify` shows why")
    if done.aside and not dry_run:
        write_note(f"{done.aside} messages cannot be sent; they are in {done.progress}/aside, with the reason")
    if not dry_run:
        write_note(f"this replay is '{done.name}'; the same command resumes it ({done.progress})")
