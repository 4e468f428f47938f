"""The group `penstock topic`: topics of a running cluster."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.cluster_connection import (
    IGNORED,
    Broker,
    Call,
    Cluster,
    Topic,
    Truth,
    boolean,
    note_if_missing,
    over_network,
)
from penstock.cli.options import help_if_alone
from penstock.cli.output import add_row, show, table, write, write_json
from penstock.errors import NoRoute
from penstock.format.constants import DLQ_PREFIX, RETRY_PREFIX
from penstock.units import format_time

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def topic(context: typer.Context) -> None:
    """Topics: list, create, change, delete, inspect.

    Examples:

    \b
      penstock topic list -n 127.0.0.1:9876
      penstock topic create -t orders -r 8 -w 8
    """
    help_if_alone(context)


@over_network
async def list_topics(
    call: Call,
    clusters: Annotated[
        bool, typer.Option("--clusters", "-c", "--clusterModel", help="Show clusters and consumer groups, too.")
    ] = False,
) -> None:
    """List all topics, including system, retry and dead-letter topics.

    Examples:

    \b
      penstock topic list
      penstock topic list --clusters --json
    """
    names = await call.admin.topics.names()
    if not clusters:
        if call.as_json:
            write_json(names)
        else:
            write("".join(f"{name}\n" for name in names))
        return
    rows = [await _with_clusters(call, name) for name in names]
    if call.as_json:
        write_json(rows)
        return
    shown = table("", "cluster", "topic", "groups")
    for row in rows:
        add_row(shown, " ".join(row["clusters"]), row["topic"], " ".join(row["groups"]))
    show(shown)


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
        int,
        typer.Option("--read-queues", "-r", "--readQueueNums", metavar="N", help="Number of queues to read."),
    ] = 8,
    write_queues: Annotated[
        int,
        typer.Option("--write-queues", "-w", "--writeQueueNums", metavar="N", help="Number of queues to write."),
    ] = 8,
    perm: Annotated[int, typer.Option("--perm", "-p", metavar="2|4|6", help="2 write, 4 read, 6 both.")] = 6,
    order: Annotated[Truth, boolean("--order", "-o", meaning="Ordered across brokers.")] = Truth.FALSE,
    unit: Annotated[Truth, boolean("--unit", "-u", meaning="Mark it as a unit's topic.")] = Truth.FALSE,
    unit_subscription: Annotated[
        Truth, boolean("--unit-subscription", "-s", "--hasUnitSub", meaning="Mark it as having unit subscriptions.")
    ] = Truth.FALSE,
) -> None:
    """Create or change a topic: at one broker, in one cluster, or at all brokers.

    Examples:

    \b
      penstock topic create -t orders -r 8 -w 8
      penstock topic create -t orders -b 127.0.0.1:10911 --perm 4
    """
    targets = await call.admin.topics.create(
        topic,
        read_queues=read_queues,
        write_queues=write_queues,
        perm=perm,
        order=bool(order),
        unit=bool(unit),
        unit_subscription=bool(unit_subscription),
        cluster=cluster,
        broker=broker,
    )
    if call.as_json:
        write_json({"topic": topic, "brokers": targets})
    else:
        queues = f"{read_queues} queues" if read_queues == write_queues else f"{read_queues}/{write_queues} queues"
        write(f"created topic {topic} ({queues}) at {' '.join(targets)}\n")


@over_network
async def delete(call: Call, topic: Topic, cluster: Cluster = None) -> None:
    """Delete a topic at brokers and name servers.

    Its messages stay on disk until their files expire.

    Examples:

    \b
      penstock topic delete -t orders
    """
    targets = await call.admin.topics.delete(topic, cluster=cluster)
    if call.as_json:
        write_json({"topic": topic, "brokers": targets})
    else:
        write(f"deleted topic {topic} at {' '.join(targets)}\n")


@over_network
async def status(call: Call, topic: Topic) -> None:
    """Minimum and maximum offset of each queue, and its last update.

    Examples:

    \b
      penstock topic status -t orders
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
    shown = table(
        "", "broker", "queue", "min offset", "max offset", "last updated", right=("queue", "min offset", "max offset")
    )
    for queue, at in stats.items():
        add_row(
            shown,
            queue.broker_name,
            queue.queue_id,
            at.min_offset,
            at.max_offset,
            format_time(at.last_update_timestamp),
        )
    show(shown)


@over_network
async def route(
    call: Call,
    topic: Topic,
    as_list: Annotated[bool, typer.Option("--list", "-l", help=IGNORED)] = False,
) -> None:
    """Brokers of a topic, their addresses, and its queues there.

    Examples:

    \b
      penstock topic route -t orders
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
      penstock topic config -t orders --json
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
      penstock topic clusters -t orders
    """
    names = sorted(await call.admin.topics.clusters(topic))
    if call.as_json:
        write_json(names)
    else:
        write("".join(f"{name}\n" for name in names))


for verb, function in {
    "list": list_topics,
    "create": create,
    "delete": delete,
    "status": status,
    "route": route,
    "config": config,
    "clusters": clusters,
}.items():
    app.command(verb)(function)
app.command("update", hidden=True)(create)
