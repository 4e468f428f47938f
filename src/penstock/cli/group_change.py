"""`penstock group update` and `delete`: how consumer groups are set."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.cli.network import Broker, Call, Cluster, Group, Truth, named, over_network, told
from penstock.cli.output import write, write_json
from penstock.format.config_tables import SubscriptionGroup


@over_network
async def update(
    call: Call,
    group: Group,
    cluster: Cluster = None,
    broker: Broker = None,
    consume_enable: Annotated[
        Truth | None, told("--consume-enable", "-s", "--consumeEnable", meaning="May consume.")
    ] = None,
    from_min: Annotated[
        Truth | None,
        told("--consume-from-min-enable", "-m", "--consumeFromMinEnable", meaning="May begin at the first offset."),
    ] = None,
    broadcast: Annotated[
        Truth | None, told("--consume-broadcast-enable", "-d", "--consumeBroadcastEnable", meaning="May broadcast.")
    ] = None,
    retry_queues: Annotated[
        int | None, named("--retry-queues", "-q", "--retryQueueNums", metavar="N", meaning="Queues of its retry topic.")
    ] = None,
    retries: Annotated[
        int | None,
        named("--retries", "-r", "--retryMaxTimes", metavar="N", meaning="Retries before a message is a dead letter."),
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
            meaning="The broker id for who lags far behind.",
        ),
    ] = None,
    notify: Annotated[
        Truth | None,
        told("--notify", "-a", "--notifyConsumerIdsChanged", meaning="Consumers hear of each other at once."),
    ] = None,
) -> None:
    """Makes a consumer group, or changes one; what is not given stays as it is.

    Examples:

    \b
      penstock group update -g warehouse --retries 3
      penstock group update -g warehouse --consume-enable false
    """
    known = (await call.admin.groups.configs(cluster=cluster, broker=broker)).get(group, SubscriptionGroup(name=group))
    asked = {
        "consume_enable": consume_enable,
        "consume_from_min_enable": from_min,
        "consume_broadcast_enable": broadcast,
        "retry_queue_nums": retry_queues,
        "retry_max_times": retries,
        "broker_id": broker_id,
        "which_broker_when_consume_slowly": when_slow,
        "notify_consumer_ids_changed_enable": notify,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    plain = {name: bool(value) if isinstance(value, Truth) else value for name, value in given.items()}
    changed = msgspec.structs.replace(known, **plain)
    targets = await call.admin.groups.update(changed, cluster=cluster, broker=broker)
    if call.as_json:
        write_json({"group": changed.to_json(), "brokers": targets})
    else:
        write(f"group {group} is set at {' '.join(targets)}\n")


@over_network
async def delete(
    call: Call,
    group: Group,
    cluster: Cluster = None,
    broker: Broker = None,
    remove_offset: Annotated[
        Truth, told("--remove-offset", "-r", "--removeOffset", meaning="Its offsets, too.")
    ] = Truth.FALSE,
) -> None:
    """Deletes a consumer group, with its topics for retries and dead letters unless one broker is named.

    Examples:

    \b
      penstock group delete -g warehouse --remove-offset true
    """
    targets = await call.admin.groups.delete(group, remove_offset=bool(remove_offset), cluster=cluster, broker=broker)
    if call.as_json:
        write_json({"group": group, "brokers": targets})
    else:
        write(f"group {group} is deleted at {' '.join(targets)}\n")
