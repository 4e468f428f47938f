"""The group `penstock topic`: topics of a running cluster."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli.cluster_connection import (
    IGNORED,
    Broker,
    Call,
    Cluster,
    Topic,
    Truth,
    boolean,
    check_topic_exists,
    named,
    note_if_missing,
    over_network,
)
from penstock.cli.confirmation import Yes, confirm, describe_change
from penstock.cli.options import DryRun, Name, VerbGroup, help_if_alone
from penstock.cli.output import add_row, show, table, warn_above_zero, write, write_json, write_note
from penstock.console.cached_cluster import ClusterView
from penstock.console.cluster_figures import QueueRow, TopicFigures, TopicKind, TopicRow
from penstock.errors import BadSettings, NoRoute
from penstock.format.config_tables import TopicConfig
from penstock.format.constants import DLQ_PREFIX, RETRY_PREFIX
from penstock.human_units import format_size, format_time

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.protocol.bodies.queues import MessageQueue
    from penstock.protocol.bodies.stats import TopicOffset

app = typer.Typer(cls=VerbGroup, rich_markup_mode=None)
_NEW_TOPIC = TopicConfig(name="", read_queue_nums=8, write_queue_nums=8, perm=6)


@app.callback(invoke_without_command=True)
def topic(context: typer.Context) -> None:
    """Topics: list, create, change, delete, inspect.

    Examples:

    \b
      penstock topic list
      penstock topic describe orders
      penstock topic create orders -r 8 -w 8
    """
    help_if_alone(context)


@over_network
async def list_topics(
    call: Call,
    pattern: Annotated[
        str | None, named("--match", metavar="PATTERN", meaning="Only names like 'order*'."), Name("PATTERN")
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Also system, retry and dead-letter topics.")] = False,
    only_names: Annotated[bool, typer.Option("--names", help="Only the names.")] = False,
    clusters: Annotated[
        bool, typer.Option("--clusters", "-c", "--clusterModel", help="Show clusters and consumer groups instead.")
    ] = False,
) -> None:
    """List topics with their queues, messages and rate.

    Where access is controlled, the figures are for administrators; --names is for every account.

    Examples:

    \b
      penstock topic list
      penstock topic list 'order*' --json
      penstock topic list --all --names
    """
    names = [
        name
        for name, kind in (await _kinds(call)).items()
        if (show_all or kind is TopicKind.NORMAL) and fnmatchcase(name, pattern or "*")
    ]
    if not names:
        write_note(f"no topic{f' like {pattern}' if pattern else ' yet'}; --all lists those of the system, too.")
    if clusters:
        _show_clusters(call, [await _with_clusters(call, name) for name in names])
        return
    if only_names:
        _write_names(call, names)
        return
    view = ClusterView(call.admin)
    rows = [row for row in await view.topics() if row.name in set(names)]
    _show_figures(call, rows, await view.topic_page(row.name for row in rows))


async def _kinds(call: Call) -> dict[str, TopicKind]:
    """Returns all topics that the name servers know, with their kinds. Any account may ask for that."""
    info = await call.admin.cluster.info()
    own = frozenset(info.cluster_addr_table) | frozenset(info.broker_addr_table)
    return {name: TopicKind.of(name, own) for name in await call.admin.topics.names()}


def _write_names(call: Call, names: list[str]) -> None:
    if call.as_json:
        write_json(names)
    else:
        write("".join(f"{name}\n" for name in names))


def _show_clusters(call: Call, rows: list[dict[str, Any]]) -> None:
    if call.as_json:
        write_json(rows)
        return
    shown = table("", "cluster", "topic", "groups")
    for row in rows:
        add_row(shown, " ".join(row["clusters"]), row["topic"], " ".join(row["groups"]))
    show(shown)


def _show_figures(call: Call, rows: list[TopicRow], figures: Sequence[TopicFigures | None]) -> None:
    """Prints a line for each topic. The figures of a topic that could not be queried are None."""
    if call.as_json:
        write_json([_topic_json(*each) for each in zip(rows, figures, strict=True)])
        return
    shown = table("", "topic", "queues", "messages", "in/s", "last message", right=("queues", "messages", "in/s"))
    for row, found in zip(rows, figures, strict=True):
        cells = ("?", "?", "?")
        if found is not None:
            cells = str(found.messages), f"{found.in_per_second:.1f}", format_time(found.last_update_ms, "seconds")
        add_row(shown, row.name, _queues(row), *cells)
    show(shown)


def _queues(row: TopicRow) -> str:
    return str(row.read_queues) if row.read_queues == row.write_queues else f"{row.read_queues}/{row.write_queues}"


def _topic_json(row: TopicRow, figures: TopicFigures | None) -> dict[str, Any]:
    return {
        "topic": row.name,
        "kind": row.kind.value,
        "read_queues": row.read_queues,
        "write_queues": row.write_queues,
        "perm": row.perm,
        "order": row.order,
        "brokers": row.brokers,
        "messages": None if figures is None else figures.messages,
        "in_per_second": None if figures is None else figures.in_per_second,
        "average_size": None if figures is None else figures.average_size,
        "last_update_timestamp": None if figures is None else figures.last_update_ms,
    }


@over_network
async def describe(call: Call, topic: Topic) -> None:
    """Show all about a topic: settings, figures, queues, groups and their lag.

    Examples:

    \b
      penstock topic describe orders
      penstock topic describe orders --json
    """
    await check_topic_exists(call, topic)
    view = ClusterView(call.admin)
    row = next((each for each in await view.topics() if each.name == topic), None)
    if row is None:
        raise NoRoute(f"topic '{topic}' has no master at the moment; start its broker")
    figures = await view.topic(topic)
    groups = {name: (await call.admin.groups.progress(name, topic)).lag for name in await view.topic_groups(topic)}
    if call.as_json:
        queues = [
            {
                "broker_name": each.broker,
                "queue_id": each.queue_id,
                "min_offset": each.min_offset,
                "max_offset": each.max_offset,
                "last_update_timestamp": each.last_update_ms,
            }
            for each in figures.queues
        ]
        lags = [{"group": name, "lag": lag} for name, lag in groups.items()]
        write_json({**_topic_json(row, figures), "queues": queues, "groups": lags})
        return
    about = table("")
    about.show_header = False
    size = "" if figures.average_size is None else f", {format_size(figures.average_size)} on average"
    for name, value in (
        ("topic", row.name + ("" if row.kind is TopicKind.NORMAL else f" ({row.kind.value})")),
        ("access", {2: "write only", 4: "read only", 6: "read and write"}.get(row.perm, f"none ({row.perm})")),
        ("order", "across brokers" if row.order else "by queue"),
        ("brokers", " ".join(row.brokers)),
        ("queues", _queues(row)),
        ("messages", f"{figures.messages}{size}"),
        ("in", f"{figures.in_per_second:.1f} messages per second"),
        ("last message", format_time(figures.last_update_ms)),
    ):
        add_row(about, name, value)
    consuming = table("\ngroups", "group", "lag", right=("lag",))
    for name, lag in groups.items():
        add_row(consuming, name, warn_above_zero(lag))
    show(about, _queue_table("\nqueues", figures.queues), *([consuming] if groups else ["\nno group consumes it"]))


def _queue_table(title: str, queues: Sequence[QueueRow]) -> Table:
    shown = table(
        title,
        "broker",
        "queue",
        "min offset",
        "max offset",
        "last updated",
        right=("queue", "min offset", "max offset"),
    )
    for each in queues:
        add_row(shown, each.broker, each.queue_id, each.min_offset, each.max_offset, format_time(each.last_update_ms))
    return shown


async def _with_clusters(call: Call, name: str) -> dict[str, Any]:
    try:
        clusters = sorted(await call.admin.topics.clusters(name))
    except NoRoute:  # the topic was deleted since it was listed
        return {"topic": name, "clusters": [], "groups": []}
    own = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return {"topic": name, "clusters": clusters, "groups": [] if own else await call.admin.topics.groups(name)}


@over_network
async def create(
    call: Call,
    topic: Topic,
    cluster: Cluster = None,
    broker: Broker = None,
    read_queues: Annotated[
        int | None,
        named("--read-queues", "-r", "--readQueueNums", metavar="N", meaning="Queues to read; 8 for a new topic."),
    ] = None,
    write_queues: Annotated[
        int | None,
        named("--write-queues", "-w", "--writeQueueNums", metavar="N", meaning="Queues to write; 8 for a new topic."),
    ] = None,
    perm: Annotated[
        int | None, named("--perm", "-p", metavar="2|4|6", meaning="2 write, 4 read, 6 both; 6 for a new topic.")
    ] = None,
    order: Annotated[Truth | None, boolean("--order", "-o", meaning="Ordered across brokers.")] = None,
    unit: Annotated[Truth | None, boolean("--unit", "-u", meaning="Mark it as a unit's topic.")] = None,
    unit_subscription: Annotated[
        Truth | None,
        boolean("--unit-subscription", "-s", "--hasUnitSub", meaning="Mark it as having unit subscriptions."),
    ] = None,
) -> None:
    """Create or change a topic: at one broker, in one cluster, or at all brokers.

    Of a topic that exists, what is not given stays as it is.

    Examples:

    \b
      penstock topic create orders -r 8 -w 8
      penstock topic create orders -b 127.0.0.1:10911 --perm 4
    """
    known = await _present(call, topic, cluster, broker)
    given = {
        "read_queue_nums": read_queues,
        "write_queue_nums": write_queues,
        "perm": perm,
        "order": None if order is None else bool(order),
    }
    changes = {name: value for name, value in given.items() if value is not None}
    config, *others = (msgspec.structs.replace(each, **changes) for each in known or [_NEW_TOPIC])
    if any(each != config for each in others):
        raise BadSettings(
            f"the brokers have different settings of topic '{topic}'; name one with --broker, or give --read-queues, "
            "--write-queues, --perm and --order"
        )
    read_queues, write_queues = config.read_queue_nums, config.write_queue_nums
    targets = await call.admin.topics.create(
        topic,
        read_queues=read_queues,
        write_queues=write_queues,
        perm=config.perm,
        order=config.order,
        unit=bool(config.sys_flag & 1 if unit is None else unit),
        unit_subscription=bool(config.sys_flag & 2 if unit_subscription is None else unit_subscription),
        cluster=cluster,
        broker=broker,
    )
    if call.as_json:
        write_json({"topic": topic, "brokers": targets})
    else:
        queues = f"{read_queues} queues" if read_queues == write_queues else f"{read_queues}/{write_queues} queues"
        write(f"{'changed' if known else 'created'} topic {topic} ({queues}) at {' '.join(targets)}\n")


async def _present(call: Call, topic: str, cluster: str | None, broker: str | None) -> list[TopicConfig]:
    """Returns the settings of a topic at the brokers that a change concerns; empty if none of them has it."""
    tables = [await call.admin.topics.configs(each) for each in await call.admin.cluster.targets(cluster, broker)]
    return [table[topic] for table in tables if topic in table]


@over_network
async def delete(call: Call, topic: Topic, cluster: Cluster = None, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Delete a topic at brokers and name servers.

    Says what would be deleted, and asks at a terminal. Its messages stay on disk until their files expire.

    Examples:

    \b
      penstock topic delete orders --dry-run
      penstock topic delete orders --yes
    """
    await check_topic_exists(call, topic, cluster=cluster)
    stats = await call.admin.topics.stats(topic)
    groups = {
        name: (await call.admin.groups.progress(name, topic)).lag for name in await call.admin.topics.groups(topic)
    }
    if dry_run and call.as_json:
        write_json({"topic": topic, "queues": len(stats), "messages": _messages(stats), "groups": groups})
        return
    if dry_run or not (yes or call.as_json):
        lags = ", ".join(f"{name} (lag {lag})" for name, lag in groups.items())
        describe_change(
            f"topic {topic}: {len(stats)} queues with {_messages(stats)} messages, consumed by {lags or 'no group'}",
            dry_run=dry_run,
        )
    if dry_run:
        return
    await confirm(f"Delete topic {topic}?", yes)
    targets = await call.admin.topics.delete(topic, cluster=cluster)
    if call.as_json:
        write_json({"topic": topic, "brokers": targets})
    else:
        write(f"deleted topic {topic} at {' '.join(targets)}\n")


def _messages(stats: dict[MessageQueue, TopicOffset]) -> int:
    return sum(max(0, at.max_offset - at.min_offset) for at in stats.values())


@over_network
async def status(call: Call, topic: Topic) -> None:
    """Minimum and maximum offset of each queue, and its last update.

    Examples:

    \b
      penstock topic status orders
    """
    stats = await call.admin.topics.stats(topic)
    if call.as_json:
        write_json(
            [
                {
                    "broker_name": queue.broker_name,
                    "queue_id": queue.queue_id,
                    "min_offset": at.min_offset,
                    "max_offset": at.max_offset,
                    "last_update_timestamp": at.last_update_timestamp,
                }
                for queue, at in stats.items()
            ]
        )
        return
    show(
        _queue_table(
            "",
            [
                QueueRow(
                    broker=queue.broker_name,
                    queue_id=queue.queue_id,
                    min_offset=at.min_offset,
                    max_offset=at.max_offset,
                    last_update_ms=at.last_update_timestamp,
                )
                for queue, at in stats.items()
            ],
        )
    )


@over_network
async def route(
    call: Call,
    topic: Topic,
    as_list: Annotated[bool, typer.Option("--list", "-l", help=IGNORED)] = False,
) -> None:
    """Brokers of a topic, their addresses, and its queues there.

    Examples:

    \b
      penstock topic route orders
    """
    route = await call.admin.topics.route(topic)
    await note_if_missing(call, topic)
    if call.as_json:
        write_json(
            {
                "topic": topic,
                "order_conf": route.data.order_topic_conf,
                "brokers": [
                    {"broker_name": each.broker_name, "cluster": each.cluster, "addresses": dict(each.broker_addrs)}
                    for each in route.data.broker_datas
                ],
                "queues": [
                    {
                        "broker_name": each.broker_name,
                        "read_queues": each.read_queue_nums,
                        "write_queues": each.write_queue_nums,
                        "perm": each.perm,
                    }
                    for each in route.data.queue_datas
                ],
            }
        )
        return
    clusters = {each.broker_name: each.cluster for each in route.data.broker_datas}
    shown = table("", "cluster", "broker", "addresses", "read", "write", "perm", right=("read", "write", "perm"))
    for each in sorted(route.data.queue_datas, key=lambda queues: queues.broker_name):
        addresses = " ".join(
            f"{number}={where}" for number, where in sorted(route.brokers.get(each.broker_name, {}).items())
        )
        add_row(
            shown,
            clusters.get(each.broker_name, ""),
            each.broker_name,
            addresses,
            each.read_queue_nums,
            each.write_queue_nums,
            each.perm,
        )
    show(shown)


@over_network
async def config(call: Call, topic: Topic) -> None:
    """Settings of a topic at each of its brokers.

    Examples:

    \b
      penstock topic config orders --json
    """
    configs = await call.admin.topics.config(topic)
    if call.as_json:
        write_json({name: each.to_json() for name, each in configs.items()})
        return
    for name, each in sorted(configs.items()):
        write(f"{name}\n" + "".join(f"  {key} = {value}\n" for key, value in each.to_json().items()))


@over_network
async def clusters(call: Call, topic: Topic) -> None:
    """Clusters that have a topic.

    Examples:

    \b
      penstock topic clusters orders
    """
    names = sorted(await call.admin.topics.clusters(topic))
    if call.as_json:
        write_json(names)
    else:
        write("".join(f"{name}\n" for name in names))


for verb, function in {
    "list": list_topics,
    "describe": describe,
    "create": create,
    "delete": delete,
    "status": status,
    "route": route,
    "config": config,
    "clusters": clusters,
}.items():
    app.command(verb)(function)
app.command("update", hidden=True)(create)
