"""`penstock cluster replication`: who follows whom, and how far behind.

The group `penstock cluster`: brokers and name servers that run.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from penstock.cli.network import Broker, Call, Cluster, named, over_network
from penstock.cli.options import help_if_alone
from penstock.cli.output import add_row, show, table, write, write_json, write_note
from penstock.errors import PenstockError
from penstock.protocol.bodies.brokers import HaRuntimeInfo


@over_network
async def replication(call: Call, broker: Broker = None) -> None:
    """Who follows whom: each master's slaves, how many bytes and seconds they are behind, and their last word.

    Slaves that know why they do not follow say so. Brokers that do not answer are named and left out.

    Examples:

    \b
      penstock cluster replication
      penstock cluster replication -b 127.0.0.1:10911 --json
    """
    found: list[dict[str, Any]] = []
    for name, broker_id, address in await _brokers(call, broker):
        try:
            told = await call.admin.cluster.replication(address)
        except PenstockError as error:
            write_note(f"{address} does not tell: {error}")
            continue
        found.append({"broker_name": name, "broker_id": broker_id, "address": address, **_row(told)})
    if call.as_json:
        write_json(found)
        return
    for each in found:
        _show(each)


async def _brokers(call: Call, broker: str | None) -> list[tuple[str, int, str]]:
    if broker is not None:
        return [("", 0, broker)]
    info = await call.admin.cluster.info()
    return [
        (name, broker_id, address)
        for name, data in sorted(info.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]


def _row(told: HaRuntimeInfo) -> dict[str, Any]:
    """What `--json` shows of one broker."""
    row: dict[str, Any] = {"role": told.broker_role, "log_end": told.master_commit_log_max_offset}
    client = told.ha_client_runtime_info
    if client is not None:
        row["follows"] = client.master_addr
        row["is_following"] = client.activated
        row["last_received_ms"] = client.last_read_timestamp
        row["problem"] = client.problem
        return row
    row["slaves"] = [
        {
            "address": slave.addr,
            "acknowledged": slave.slave_ack_offset,
            "behind_bytes": slave.diff,
            "behind_seconds": slave.behind_seconds,
            "last_acknowledged_ms": slave.last_ack_timestamp,
            "is_available": slave.in_sync,
        }
        for slave in told.ha_connection_info
    ]
    return row


def _show(row: dict[str, Any]) -> None:
    title = f"{row['broker_name'] or 'broker'} {row['address']} ({row['role']}), log up to {row['log_end']}"
    if "follows" in row:
        state = "follows" if row["is_following"] else "does NOT follow"
        write(f"{title}: {state} {row['follows'] or 'anybody: its master is not known'}\n")
        if row["problem"]:
            write(f"  {row['problem']}\n")
        return
    if not row["slaves"]:
        write(f"{title}: no slave follows\n")
        return
    shown = table(
        title,
        "slave",
        "acknowledged",
        "behind bytes",
        "seconds",
        "last word",
        right=("acknowledged", "behind bytes", "seconds"),
    )
    now = time.time_ns() // 1_000_000
    for slave in row["slaves"]:
        ago = f"{max(0, now - slave['last_acknowledged_ms']) / 1000:.1f} s ago"
        behind = slave["behind_bytes"], f"{slave['behind_seconds']:.1f}"
        add_row(shown, slave["address"], slave["acknowledged"], *behind, ago)
    show(shown)


app = typer.Typer(rich_markup_mode=None)
_FIGURES = ("brokerVersionDesc", "putTps", "getTransferedTps", "msgPutTotalTodayNow", "msgGetTotalTodayNow")
BrokerName = Annotated[str, named("--broker-name", "-b", "--brokerName", metavar="NAME", meaning="The broker's name.")]
Key = Annotated[str, named("--key", "-k", metavar="NAME", meaning="The setting's name.")]
Value = Annotated[str, named("--value", "-v", metavar="VALUE", meaning="Its new value.")]
Namespace = Annotated[str, named("--namespace", "-s", metavar="NAME", meaning="The namespace.")]


@app.callback(invoke_without_command=True)
def cluster(context: typer.Context) -> None:
    """Brokers and name servers that run: who there is, how they are, how they are set.

    Examples:

    \b
      penstock cluster list
      penstock cluster status -b 127.0.0.1:10911
    """
    help_if_alone(context)


@over_network
async def list_brokers(
    call: Call,
    more: Annotated[bool, typer.Option("--more", "-m", "--moreStats", help="All figures, not only some.")] = False,
    interval: Annotated[
        int | None, named("--interval", "-i", metavar="SECONDS", meaning="As mqadmin has it; answers once here.")
    ] = None,
) -> None:
    """All brokers by cluster, with some of their figures; a broker that does not answer is listed without.

    Examples:

    \b
      penstock cluster list
    """
    info = await call.admin.cluster.info()
    rows: list[dict[str, Any]] = []
    for name, brokers in sorted(info.cluster_addr_table.items()):
        for broker in sorted(brokers):
            for broker_id, address in sorted(info.broker_addr_table[broker].broker_addrs.items()):
                row: dict[str, Any] = {
                    "cluster": name,
                    "broker_name": broker,
                    "broker_id": broker_id,
                    "address": address,
                }
                rows.append({**row, "figures": await _figures(call, address, more)})
    if call.as_json:
        write_json(rows)
        return
    shown = table("", "cluster", "broker", "id", "address", "version", "in/s", "out/s", right=("id", "in/s", "out/s"))
    for row in rows:
        found = row["figures"]
        rates = (found.get(name, "").split(" ")[0] for name in ("putTps", "getTransferedTps"))
        add_row(
            shown,
            row["cluster"],
            row["broker_name"],
            row["broker_id"],
            row["address"],
            found.get("brokerVersionDesc", "?"),
            *rates,
        )
    show(shown)
    if more:
        for row in rows:
            write(f"{row['address']}\n" + "".join(f"  {name} = {value}\n" for name, value in row["figures"].items()))


async def _figures(call: Call, address: str, more: bool) -> dict[str, str]:
    try:
        found = await call.admin.cluster.runtime_info(address)
    except PenstockError as error:
        write_note(f"no figures of {address}: {error}")
        return {}
    return found if more else {name: found[name] for name in _FIGURES if name in found}


@over_network
async def status(call: Call, broker: Broker = None, cluster: Cluster = None) -> None:
    """All figures of a broker, of a cluster's masters, or of all masters, by RocketMQ's names.

    Examples:

    \b
      penstock cluster status -b 127.0.0.1:10911
      penstock cluster status --json
    """
    found = {
        each: await call.admin.cluster.runtime_info(each) for each in await call.admin.cluster.targets(cluster, broker)
    }
    _write_tables(call, found)


@over_network
async def config(call: Call, broker: Broker = None, cluster: Cluster = None) -> None:
    """The settings of a broker, of a cluster's masters, or of all masters.

    Examples:

    \b
      penstock cluster config -b 127.0.0.1:10911
    """
    found = {
        each: await call.admin.cluster.broker_config(each) for each in await call.admin.cluster.targets(cluster, broker)
    }
    _write_tables(call, found)


def _write_tables(call: Call, found: dict[str, dict[str, str]]) -> None:
    if call.as_json:
        write_json(found)
        return
    for address, values in found.items():
        shown = table(address, "name", "value")
        for name, value in sorted(values.items()):
            add_row(shown, name, value)
        show(shown)


@over_network
async def set_config(call: Call, key: Key, value: Value, broker: Broker = None, cluster: Cluster = None) -> None:
    """Changes a setting of one broker, of a cluster's masters, or of all masters, while they run.

    Brokers decide which settings may be changed.

    Examples:

    \b
      penstock cluster set -b 127.0.0.1:10911 -k transactionCheckMax -v 5
    """
    targets = await call.admin.cluster.targets(cluster, broker)
    for address in targets:
        await call.admin.cluster.update_broker_config(address, {key: value})
    _write_done(call, targets, f"{key} is {value}")


def _write_done(call: Call, addresses: list[str], what: str) -> None:
    if call.as_json:
        write_json(addresses)
    else:
        write(f"{what} at {' '.join(addresses)}\n")


@over_network
async def wipe_write_perm(call: Call, broker_name: BrokerName) -> None:
    """Has producers leave a broker, as before it is taken down; all name servers are told.

    Examples:

    \b
      penstock cluster wipe-write-perm -b broker-a
    """
    _write_count(call, broker_name, await call.admin.cluster.wipe_write_perm(broker_name), "lost")


@over_network
async def add_write_perm(call: Call, broker_name: BrokerName) -> None:
    """Has producers come back to a broker.

    Examples:

    \b
      penstock cluster add-write-perm -b broker-a
    """
    _write_count(call, broker_name, await call.admin.cluster.add_write_perm(broker_name), "got back")


def _write_count(call: Call, broker_name: str, topics: int, what: str) -> None:
    if call.as_json:
        write_json({"broker_name": broker_name, "topics": topics})
    else:
        write(f"{topics} topics of {broker_name} {what} their write permission\n")


@over_network
async def namesrv_config(call: Call) -> None:
    """The settings of each name server.

    Examples:

    \b
      penstock cluster namesrv-config
    """
    _write_tables(call, await call.admin.cluster.namesrv_config())


@over_network
async def set_namesrv(call: Call, key: Key, value: Value) -> None:
    """Changes a setting of all name servers, while they run.

    Examples:

    \b
      penstock cluster set-namesrv -k autoCreateTopicEnable -v false
    """
    await call.admin.cluster.update_namesrv_config({key: value})
    _write_done(call, call.config.name_servers, f"{key} is {value}")


@over_network
async def kv(call: Call, namespace: Namespace) -> None:
    """The texts that administrators keep at the name servers, by key.

    Examples:

    \b
      penstock cluster kv -s ORDER_TOPIC_CONFIG
    """
    found = await call.admin.cluster.list_kv(namespace)
    if call.as_json:
        write_json(found)
    else:
        write("".join(f"{key} = {value}\n" for key, value in sorted(found.items())))


@over_network
async def put_kv(call: Call, namespace: Namespace, key: Key, value: Value) -> None:
    """Keeps a text at all name servers.

    Examples:

    \b
      penstock cluster put-kv -s mine -k a -v 1
    """
    await call.admin.cluster.put_kv(namespace, key, value)
    _write_done(call, call.config.name_servers, f"{namespace}/{key} is {value}")


@over_network
async def delete_kv(call: Call, namespace: Namespace, key: Key) -> None:
    """Has all name servers forget a text.

    Examples:

    \b
      penstock cluster delete-kv -s mine -k a
    """
    await call.admin.cluster.delete_kv(namespace, key)
    _write_done(call, call.config.name_servers, f"{namespace}/{key} is gone")


for verb, function in {
    "list": list_brokers,
    "status": status,
    "replication": replication,
    "config": config,
    "set": set_config,
    "wipe-write-perm": wipe_write_perm,
    "add-write-perm": add_write_perm,
    "namesrv-config": namesrv_config,
    "set-namesrv": set_namesrv,
    "kv": kv,
    "put-kv": put_kv,
    "delete-kv": delete_kv,
}.items():
    app.command(verb)(function)
