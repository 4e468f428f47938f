"""The group `penstock group`: consumer and producer groups of a running cluster."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.cluster_connection import (
    IGNORED,
    Broker,
    Call,
    Cluster,
    Group,
    MaybeTopic,
    Truth,
    boolean,
    check_group_exists,
    named,
    over_network,
)
from penstock.cli.confirmation import Yes, confirm, describe_change
from penstock.cli.options import DryRun, Name, VerbGroup, help_if_alone
from penstock.cli.output import add_row, show, table, warn_above_zero, write, write_json, write_note
from penstock.client.admin.groups import GroupProgress
from penstock.console.cached_cluster import ClusterView
from penstock.console.cluster_figures import GroupFigures
from penstock.errors import BadSettings, Refused
from penstock.format.config_tables import SubscriptionGroup
from penstock.format.constants import DLQ_PREFIX
from penstock.human_units import format_time
from penstock.protocol.bodies.clients import ClientConnection
from penstock.protocol.codes import ResponseCode
from penstock.protocol.versions import version_name

app = typer.Typer(cls=VerbGroup, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def group(context: typer.Context) -> None:
    """Consumer groups: lag, members, settings.

    Examples:

    \b
      penstock group progress warehouse
      penstock group connections warehouse
    """
    help_if_alone(context)


@over_network
async def list_groups(
    call: Call,
    cluster: Cluster = None,
    broker: Broker = None,
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Also those of brokers and tools.")] = False,
) -> None:
    """List consumer groups with their settings.

    Examples:

    \b
      penstock group list
      penstock group list --all --json
    """
    found = await call.admin.groups.configs(cluster=cluster, broker=broker)
    wanted = found if show_all else await ClusterView(call.admin).progress()  # which has no groups of the system
    configs = {name: each for name, each in found.items() if name in wanted}
    if call.as_json:
        write_json([each.to_json() for each in configs.values()])
        return
    shown = table("", "group", "enabled", "broadcast", "retry queues", "retries", right=("retry queues", "retries"))
    for each in configs.values():
        add_row(
            shown,
            each.name,
            each.consume_enable,
            each.consume_broadcast_enable,
            each.retry_queue_nums,
            each.retry_max_times,
        )
    show(shown)


@over_network
async def describe(call: Call, group: Group) -> None:
    """Show all about a consumer group: settings, members, lag, dead letters.

    Examples:

    \b
      penstock group describe warehouse
      penstock group describe warehouse --json
    """
    configs = await call.admin.groups.configs()
    figures = await ClusterView(call.admin).group(group)
    if group not in configs and not figures.queues and not figures.clients:
        await check_group_exists(call, group)
    settings = configs.get(group)
    lags = {topic: sum(each.lag for each in figures.queues if each.topic == topic) for topic in _topics(figures)}
    dead = await _stored(call, f"{DLQ_PREFIX}{group}")
    if call.as_json:
        write_json(
            {
                "group": group,
                "settings": None if settings is None else settings.to_json(),
                "message_model": figures.model,
                "lag": figures.lag,
                "consume_per_second": figures.consume_per_second,
                "dead_letters": dead,
                "topics": [
                    {"topic": topic, "expression": figures.subscriptions.get(topic), "lag": lag}
                    for topic, lag in lags.items()
                ],
                "clients": [msgspec.to_builtins(each) for each in figures.clients],
            }
        )
        return
    about = table("")
    about.show_header = False
    for name, value in (
        ("group", group),
        ("consuming", "no" if settings is not None and not settings.consume_enable else "yes"),
        ("model", figures.model or "no consumer is connected"),
        ("retries", "?" if settings is None else settings.retry_max_times),
        ("lag", warn_above_zero(figures.lag)),
        ("out", f"{figures.consume_per_second:.1f} messages per second"),
        ("dead letters", warn_above_zero(dead)),
    ):
        add_row(about, name, value)
    topics = table("\ntopics", "topic", "expression", "lag", right=("lag",))
    for topic, lag in lags.items():
        add_row(topics, topic, figures.subscriptions.get(topic, "-"), warn_above_zero(lag))
    clients = table("\nclients", "client", "address", "language", "version")
    for each in figures.clients:
        add_row(clients, each.client_id, each.address, each.language, each.version)
    show(about, *([topics] if lags else []), *([clients] if figures.clients else []))


def _topics(figures: GroupFigures) -> list[str]:
    return sorted({*(each.topic for each in figures.queues), *figures.subscriptions})


async def _stored(call: Call, topic: str) -> int:
    """Returns the number of stored messages of a topic; 0 if it does not exist."""
    if topic not in await call.admin.topics.names():
        return 0
    return sum(max(0, at.max_offset - at.min_offset) for at in (await call.admin.topics.stats(topic)).values())


@over_network
async def progress(
    call: Call,
    group: Annotated[
        str | None,
        named("--group", "-g", "--groupName", metavar="G", meaning="The group; default: all groups."),
        Name("GROUP"),
    ] = None,
    topic: MaybeTopic = None,
    client_ip: Annotated[
        Truth, boolean("--clients", "-s", "--showClientIP", meaning="Show the client that owns each queue.")
    ] = Truth.FALSE,
) -> None:
    """Offsets and lag of a group in each queue.

    Without a group: lag and number of consumers of every group.

    Examples:

    \b
      penstock group progress warehouse
      penstock group progress warehouse -t orders --json
    """
    if group is None:
        await _all_progress(call)
        return
    progress = await call.admin.groups.progress(group, topic)
    if not progress.queues:  # a lag of 0 would look fine, but the group's name may be misspelt
        await check_group_exists(call, group)
        write_note(f"group {group} has consumed nothing{f' of topic {topic}' if topic else ''} yet.")
    owners = await _owners(call, group) if client_ip else {}
    if call.as_json:
        write_json(_progress_json(progress, owners))
        return
    shown = table(
        "",
        "topic",
        "broker",
        "queue",
        "broker offset",
        "consumer offset",
        "lag",
        "last consumed",
        *(["client"] if client_ip else []),
        right=("queue", "broker offset", "consumer offset", "lag"),
    )
    for each in progress.queues:
        lag = warn_above_zero(each.lag)
        at = [each.broker_offset, each.consumer_offset, lag, format_time(each.last_timestamp)]
        client = [owners.get(each.queue, "")] if client_ip else []
        add_row(shown, each.queue.topic, each.queue.broker_name, each.queue.queue_id, *at, *client)
    show(shown, f"lag {progress.lag}, {progress.consume_tps:.2f} messages per second")


async def _owners(call: Call, group: str) -> dict[Any, str]:
    """Returns the id of the client that owns each queue, from the clients' own reports."""
    try:
        clients = (await call.admin.groups.connections(group)).connection_set
    except Refused:
        return {}
    owners = {}
    for client in clients:
        try:
            info = await call.admin.groups.running_info(group, client.client_id)
        except Refused as error:
            write_note(f"no queues of {client.client_id}: {error}")
            continue
        owners.update(dict.fromkeys(info.mq_table, client.client_id))
    return owners


def _progress_json(progress: GroupProgress, owners: dict[Any, str]) -> dict[str, Any]:
    return {
        "group": progress.group,
        "lag": progress.lag,
        "consume_tps": progress.consume_tps,
        "queues": [
            {
                "topic": each.queue.topic,
                "broker_name": each.queue.broker_name,
                "queue_id": each.queue.queue_id,
                "broker_offset": each.broker_offset,
                "consumer_offset": each.consumer_offset,
                "lag": each.lag,
                "last_timestamp": each.last_timestamp,
                **({"client_id": owners.get(each.queue, "")} if owners else {}),
            }
            for each in progress.queues
        ],
    }


async def _all_progress(call: Call) -> None:
    rows: list[dict[str, Any]] = []
    for name in await call.admin.groups.configs():
        progress = await call.admin.groups.progress(name)
        try:
            clients = len((await call.admin.groups.connections(name)).connection_set)
        except Refused as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            clients = 0
        rows.append({"group": name, "clients": clients, "lag": progress.lag, "consume_tps": progress.consume_tps})
    if call.as_json:
        write_json(rows)
        return
    shown = table("", "group", "clients", "lag", "per second", right=("clients", "lag", "per second"))
    for row in rows:
        add_row(shown, row["group"], row["clients"], warn_above_zero(row["lag"]), f"{row['consume_tps']:.2f}")
    show(shown)


@over_network
async def connections(call: Call, group: Group, broker: Broker = None) -> None:
    """Connected consumers of a group, and their subscriptions.

    Examples:

    \b
      penstock group connections warehouse
    """
    found = await call.admin.groups.connections(group)
    if call.as_json:
        write_json(
            {
                "group": group,
                "consume_type": found.consume_type.value,
                "message_model": found.message_model.value,
                "consume_from_where": found.consume_from_where.value,
                "clients": [_client_json(each) for each in found.connection_set],
                "subscriptions": [
                    {"topic": each.topic, "expression_type": each.expression_type, "expression": each.sub_string}
                    for each in found.subscription_table.values()
                ],
            }
        )
        return
    model = f"{found.message_model.value}, {found.consume_from_where.value}"
    subscriptions = table("", "topic", "expression")
    for each in found.subscription_table.values():
        add_row(subscriptions, each.topic, each.sub_string)
    show(
        _client_table(found.connection_set),
        subscriptions,
        model,
    )


@over_network
async def producers(
    call: Call,
    group: Annotated[
        str | None,
        named("--group", "-g", "--producerGroup", metavar="G", meaning="The producer group; default: all groups."),
        Name("GROUP"),
    ] = None,
    topic: MaybeTopic = None,
    broker: Broker = None,
) -> None:
    """Connected producers of a group, or of all groups.

    --topic is for a group: only the brokers of this topic. --broker is for all groups: only this broker.

    Examples:

    \b
      penstock group producers
      penstock group producers orders-service -t orders
    """
    if group is None:
        if topic is not None:
            raise BadSettings("--topic goes with a group; name the group, or leave the topic out")
        await _all_producers(call, broker)
        return
    if broker is not None:
        raise BadSettings("--broker goes without a group; leave it out, or name a topic of that broker")
    found = (await call.admin.groups.producers(group, topic)).connection_set
    if call.as_json:
        write_json([_client_json(each) for each in found])
    else:
        show(_client_table(found))


async def _all_producers(call: Call, broker: str | None) -> None:
    found = await call.admin.groups.all_producers(broker=broker)
    rows: list[dict[str, Any]] = [
        {
            "group": group,
            "client_id": each.client_id,
            "address": each.remote_ip.removeprefix("/"),
            "language": each.language,
            "version": version_name(each.version),
            "last_update_timestamp": each.last_update_timestamp,
        }
        for group, producers in found.items()
        for each in producers
    ]
    if call.as_json:
        write_json(rows)
        return
    shown = table("", "group", "client", "address", "language", "version", "last heartbeat")
    for row in rows:
        *known, heard = row.values()
        add_row(shown, *known, format_time(heard))
    show(shown)


def _client_json(client: ClientConnection) -> dict[str, Any]:
    return {
        "client_id": client.client_id,
        "address": client.client_addr,
        "language": client.language,
        "version": version_name(client.version),
    }


def _client_table(clients: list[ClientConnection]) -> Any:
    shown = table("", "client", "address", "language", "version")
    for each in clients:
        add_row(shown, each.client_id, each.client_addr, each.language, version_name(each.version))
    return shown


@over_network
async def status(
    call: Call,
    group: Group,
    client: Annotated[
        str | None, named("--client", "-i", "--clientId", metavar="ID", meaning="Only this client; default: all.")
    ] = None,
    broker: Broker = None,
    jstack: Annotated[bool, typer.Option("--jstack", "-s", help=IGNORED)] = False,
) -> None:
    """Queues and prefetched messages of each consumer of a group.

    Examples:

    \b
      penstock group status warehouse
    """
    ids = (
        [client] if client else [each.client_id for each in (await call.admin.groups.connections(group)).connection_set]
    )
    found = {each: await call.admin.groups.running_info(group, each) for each in ids}
    if call.as_json:
        write_json(
            {
                name: {
                    "properties": info.properties,
                    "subscriptions": {each.topic: each.sub_string for each in info.subscription_set},
                    "queues": [
                        {**msgspec.to_builtins(queue), **msgspec.to_builtins(held)}
                        for queue, held in info.mq_table.items()
                    ],
                }
                for name, info in found.items()
            }
        )
        return
    for name, info in found.items():
        shown = table(
            name,
            "topic",
            "broker",
            "queue",
            "committed",
            "prefetched",
            "last consumed",
            right=("queue", "committed", "prefetched"),
        )
        for queue, held in sorted(info.mq_table.items()):
            add_row(
                shown,
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                held.commit_offset,
                held.cached_msg_count,
                format_time(held.last_consume_timestamp),
            )
        show(shown)


@over_network
async def update(
    call: Call,
    group: Group,
    cluster: Cluster = None,
    broker: Broker = None,
    consume_enable: Annotated[
        Truth | None, boolean("--consume-enable", "-s", "--consumeEnable", meaning="May consume.")
    ] = None,
    from_min: Annotated[
        Truth | None,
        boolean(
            "--consume-from-min-enable",
            "-m",
            "--consumeFromMinEnable",
            meaning="May start at the minimum.",
        ),
    ] = None,
    broadcast: Annotated[
        Truth | None,
        boolean("--consume-broadcast-enable", "-d", "--consumeBroadcastEnable", meaning="May broadcast."),
    ] = None,
    retry_queues: Annotated[
        int | None,
        named("--retry-queues", "-q", "--retryQueueNums", metavar="N", meaning="Queues of its retry topic."),
    ] = None,
    retries: Annotated[
        int | None,
        named("--retries", "-r", "--retryMaxTimes", metavar="N", meaning="Retries before a dead letter."),
    ] = None,
    broker_id: Annotated[
        int | None, named("--broker-id", "-i", "--brokerId", metavar="N", meaning="The broker id to consume from.")
    ] = None,
    when_slow: Annotated[
        int | None,
        named(
            "--when-slow",
            "-w",
            "--whichBrokerWhenConsumeSlowly",
            metavar="N",
            meaning="The broker id for consumers that lag far behind.",
        ),
    ] = None,
    notify: Annotated[
        Truth | None,
        boolean("--notify", "-a", "--notifyConsumerIdsChanged", meaning="Notify members of changes at once."),
    ] = None,
) -> None:
    """Create a consumer group, or change the given settings of one.

    Examples:

    \b
      penstock group update warehouse --retries 3
      penstock group update warehouse --consume-enable false
    """
    known = (await call.admin.groups.configs(cluster=cluster, broker=broker)).get(group, SubscriptionGroup(name=group))
    options = {
        "consume_enable": consume_enable,
        "consume_from_min_enable": from_min,
        "consume_broadcast_enable": broadcast,
        "retry_queue_nums": retry_queues,
        "retry_max_times": retries,
        "broker_id": broker_id,
        "which_broker_when_consume_slowly": when_slow,
        "notify_consumer_ids_changed_enable": notify,
    }
    given = {name: value for name, value in options.items() if value is not None}
    changes = {name: bool(value) if isinstance(value, Truth) else value for name, value in given.items()}
    changed = msgspec.structs.replace(known, **changes)
    targets = await call.admin.groups.update(changed, cluster=cluster, broker=broker)
    if call.as_json:
        write_json({"group": changed.to_json(), "brokers": targets})
    else:
        write(f"updated group {group} at {' '.join(targets)}\n")


@over_network
async def delete(
    call: Call,
    group: Group,
    cluster: Cluster = None,
    broker: Broker = None,
    remove_offset: Annotated[
        Truth, boolean("--remove-offset", "-r", "--removeOffset", meaning="Delete its offsets, too.")
    ] = Truth.FALSE,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete a consumer group.

    Its retry and dead-letter topics are deleted, too, unless --broker is given. Says what would be deleted, and asks at
    a terminal.

    Examples:

    \b
      penstock group delete warehouse --dry-run
      penstock group delete warehouse --remove-offset true --yes
    """
    await check_group_exists(call, group, cluster=cluster, broker=broker)
    figures = await ClusterView(call.admin).group(group)
    dead = await _stored(call, f"{DLQ_PREFIX}{group}")
    if dry_run and call.as_json:
        write_json({"group": group, "lag": figures.lag, "dead_letters": dead, "clients": len(figures.clients)})
        return
    if dry_run or not (yes or call.as_json):
        lost = "" if broker else f"; {dead} dead letters"
        offsets = " (with its offsets)" if remove_offset else ""
        clients = f"{len(figures.clients)} connected clients, lag {figures.lag}"
        describe_change(f"group {group}{offsets}: {clients}{lost}", dry_run=dry_run)
    if dry_run:
        return
    await confirm(f"Delete group {group}?", yes)
    targets = await call.admin.groups.delete(group, remove_offset=bool(remove_offset), cluster=cluster, broker=broker)
    if call.as_json:
        write_json({"group": group, "brokers": targets})
    else:
        write(f"deleted group {group} at {' '.join(targets)}\n")


for verb, function in {
    "list": list_groups,
    "describe": describe,
    "progress": progress,
    "connections": connections,
    "producers": producers,
    "status": status,
    "update": update,
    "delete": delete,
}.items():
    app.command(verb)(function)
app.command("create", hidden=True)(update)
