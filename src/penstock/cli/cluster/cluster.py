"""The group `penstock cluster`: brokers and name servers of a running cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from penstock.cli.cluster import drill, failover
from penstock.cli.cluster_connection import IGNORED, Broker, Call, Cluster, named, over_network
from penstock.cli.confirmation import Yes, confirm, describe_change
from penstock.cli.options import DryRun, Name, VerbGroup, help_if_alone
from penstock.cli.output import add_row, show, table, write, write_json, write_note
from penstock.cli.suggestions import did_you_mean
from penstock.errors import BadSettings, PenstockError
from penstock.protocol.bodies.admin import HaRuntimeInfo

app = typer.Typer(cls=VerbGroup, rich_markup_mode=None)
_FIGURES = ("brokerVersionDesc", "putTps", "getTransferedTps", "msgPutTotalTodayNow", "msgGetTotalTodayNow")
BrokerName = Annotated[
    str, named("--broker-name", "-b", "--brokerName", metavar="NAME", meaning="The broker's name."), Name("BROKER")
]
Key = Annotated[str, named("--key", "-k", metavar="NAME", meaning="The setting's name."), Name("KEY")]
Value = Annotated[str, named("--value", "-v", metavar="VALUE", meaning="Its new value."), Name("VALUE")]
BrokerAddress = Annotated[
    str | None,
    named("--broker", "-b", "--brokerAddr", metavar="HOST:PORT", meaning="Only this broker."),
    Name("HOST:PORT"),
]
Namespace = Annotated[str, named("--namespace", "-s", metavar="NAME", meaning="The namespace."), Name("NAMESPACE")]


@app.callback(invoke_without_command=True)
def cluster(context: typer.Context) -> None:
    """Brokers and name servers: state and settings.

    Examples:

    \b
      penstock cluster list
      penstock cluster status 127.0.0.1:10911
    """
    help_if_alone(context)


@over_network
async def list_brokers(
    call: Call,
    more: Annotated[bool, typer.Option("--more", "-m", "--moreStats", help="All figures, not only a few.")] = False,
    interval: Annotated[int | None, named("--interval", "-i", metavar="SECONDS", meaning=IGNORED)] = None,
) -> None:
    """List all brokers by cluster, with their main figures.

    A broker that does not answer is listed without figures.

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
        figures = row["figures"]
        rates = (figures.get(name, "").split(" ")[0] for name in ("putTps", "getTransferedTps"))
        add_row(
            shown,
            row["cluster"],
            row["broker_name"],
            row["broker_id"],
            row["address"],
            figures.get("brokerVersionDesc", "?"),
            *rates,
        )
    show(shown)
    if more:
        for row in rows:
            write(f"{row['address']}\n" + "".join(f"  {name} = {value}\n" for name, value in row["figures"].items()))


async def _figures(call: Call, address: str, more: bool) -> dict[str, str]:
    try:
        figures = await call.admin.cluster.runtime_info(address)
    except PenstockError as error:
        write_note(f"no figures of {address}: {error}")
        return {}
    return figures if more else {name: figures[name] for name in _FIGURES if name in figures}


@over_network
async def status(call: Call, broker: BrokerAddress = None, cluster: Cluster = None) -> None:
    """Print all figures of one broker, of a cluster's masters, or of all masters.

    Examples:

    \b
      penstock cluster status 127.0.0.1:10911
      penstock cluster status --json
    """
    targets = await call.admin.cluster.targets(cluster, broker)
    _write_tables(call, {each: await call.admin.cluster.runtime_info(each) for each in targets})


@over_network
async def replication(call: Call, broker: BrokerAddress = None) -> None:
    """Replication state: each master's slaves, and how far they are behind.

    In bytes and seconds, with the time of the last ack. A slave that does not follow reports why. Brokers that do not
    answer are noted on stderr and skipped.

    Examples:

    \b
      penstock cluster replication
      penstock cluster replication 127.0.0.1:10911 --json
    """
    rows: list[dict[str, Any]] = []
    for name, broker_id, address in await _brokers(call, broker):
        try:
            info = await call.admin.cluster.replication(address)
        except PenstockError as error:
            write_note(f"no replication state of {address}: {error}")
            continue
        rows.append({"broker_name": name, "broker_id": broker_id, "address": address, **_row(info)})
    if call.as_json:
        write_json(rows)
        return
    for row in rows:
        _show(row)


async def _brokers(call: Call, broker: str | None) -> list[tuple[str, int, str]]:
    if broker is not None:
        return [("", 0, broker)]
    info = await call.admin.cluster.info()
    return [
        (name, broker_id, address)
        for name, data in sorted(info.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]


def _row(info: HaRuntimeInfo) -> dict[str, Any]:
    """Returns one broker's replication state as a JSON object."""
    row: dict[str, Any] = {"role": info.broker_role, "log_end": info.master_commit_log_max_offset}
    client = info.ha_client_runtime_info
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
        for slave in info.ha_connection_info
    ]
    return row


def _show(row: dict[str, Any]) -> None:
    title = f"{row['broker_name'] or 'broker'} {row['address']} ({row['role']}), log up to {row['log_end']}"
    if "follows" in row:
        state = "follows" if row["is_following"] else "does NOT follow"
        write(f"{title}: {state} {row['follows'] or 'any master: it knows none'}\n")
        if row["problem"]:
            write(f"  {row['problem']}\n")
        return
    if not row["slaves"]:
        write(f"{title}: no slaves\n")
        return
    shown = table(
        title,
        "slave",
        "acknowledged",
        "behind bytes",
        "seconds",
        "last ack",
        right=("acknowledged", "behind bytes", "seconds"),
    )
    now = time.time_ns() // 1_000_000
    for slave in row["slaves"]:
        ago = f"{max(0, now - slave['last_acknowledged_ms']) / 1000:.1f} s ago"
        behind = slave["behind_bytes"], f"{slave['behind_seconds']:.1f}"
        add_row(shown, slave["address"], slave["acknowledged"], *behind, ago)
    show(shown)


@over_network
async def config(call: Call, broker: BrokerAddress = None, cluster: Cluster = None) -> None:
    """Print the settings of one broker, of a cluster's masters, or of all masters.

    Examples:

    \b
      penstock cluster config 127.0.0.1:10911
    """
    targets = await call.admin.cluster.targets(cluster, broker)
    _write_tables(call, {each: await call.admin.cluster.broker_config(each) for each in targets})


def _write_tables(call: Call, tables: dict[str, dict[str, str]]) -> None:
    if call.as_json:
        write_json(tables)
        return
    for address, values in tables.items():
        shown = table(address, "name", "value")
        for name, value in sorted(values.items()):
            add_row(shown, name, value)
        show(shown)


@over_network
async def set_config(call: Call, key: Key, value: Value, broker: Broker = None, cluster: Cluster = None) -> None:
    """Change a setting of one broker, of a cluster's masters, or of all masters.

    They keep running; each broker decides which settings may be changed.

    Examples:

    \b
      penstock cluster set -b 127.0.0.1:10911 transactionCheckMax 5
    """
    targets = await call.admin.cluster.targets(cluster, broker)
    for address in targets:
        await call.admin.cluster.update_broker_config(address, {key: value})
    _write_done(call, targets, f"set {key}={value}")


def _write_done(call: Call, addresses: list[str], what: str) -> None:
    if call.as_json:
        write_json(addresses)
    else:
        write(f"{what} at {' '.join(addresses)}\n")


@over_network
async def wipe_write_perm(call: Call, broker_name: BrokerName) -> None:
    """Remove a broker's write permission at all name servers, as before maintenance.

    Examples:

    \b
      penstock cluster wipe-write-perm broker-a
    """
    await _check_broker_name(call, broker_name)
    _write_count(call, broker_name, await call.admin.cluster.wipe_write_perm(broker_name), "lost")


@over_network
async def add_write_perm(call: Call, broker_name: BrokerName) -> None:
    """Restore a broker's write permission at all name servers.

    Examples:

    \b
      penstock cluster add-write-perm broker-a
    """
    await _check_broker_name(call, broker_name)
    _write_count(call, broker_name, await call.admin.cluster.add_write_perm(broker_name), "regained")


async def _check_broker_name(call: Call, broker_name: str) -> None:
    names = (await call.admin.cluster.info()).broker_addr_table
    if broker_name not in names:
        raise BadSettings(
            f"there is no broker '{broker_name}'; {did_you_mean(broker_name, names, 'penstock cluster list')}"
        )


def _write_count(call: Call, broker_name: str, topics: int, what: str) -> None:
    if call.as_json:
        write_json({"broker_name": broker_name, "topics": topics})
    else:
        write(f"{topics} topics of {broker_name} {what} their write permission\n")


@over_network
async def namesrv_config(call: Call) -> None:
    """Print the settings of each name server.

    Examples:

    \b
      penstock cluster namesrv-config
    """
    _write_tables(call, await call.admin.cluster.namesrv_config())


@over_network
async def set_namesrv(call: Call, key: Key, value: Value) -> None:
    """Change a setting of all name servers while they run.

    Examples:

    \b
      penstock cluster set-namesrv autoCreateTopicEnable false
    """
    await call.admin.cluster.update_namesrv_config({key: value})
    _write_done(call, call.config.name_servers, f"set {key}={value}")


@over_network
async def kv(call: Call, namespace: Namespace) -> None:
    """Print the key-value entries of a namespace at the name servers.

    Examples:

    \b
      penstock cluster kv ORDER_TOPIC_CONFIG
    """
    entries = await call.admin.cluster.list_kv(namespace)
    if call.as_json:
        write_json(entries)
    else:
        write("".join(f"{key} = {value}\n" for key, value in sorted(entries.items())))


@over_network
async def put_kv(call: Call, namespace: Namespace, key: Key, value: Value) -> None:
    """Store a key-value entry at all name servers.

    Examples:

    \b
      penstock cluster put-kv mine a 1
    """
    await call.admin.cluster.put_kv(namespace, key, value)
    _write_done(call, call.config.name_servers, f"set {namespace}/{key}={value}")


@over_network
async def delete_kv(call: Call, namespace: Namespace, key: Key, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Delete a key-value entry at all name servers.

    Examples:

    \b
      penstock cluster delete-kv mine a --yes
    """
    entries = await call.admin.cluster.list_kv(namespace)
    if key not in entries:
        listing = f"penstock cluster kv {namespace}"
        raise BadSettings(f"namespace '{namespace}' has no key '{key}'; {did_you_mean(key, entries, listing)}")
    if dry_run and call.as_json:
        write_json({"namespace": namespace, "key": key, "value": entries[key]})
        return
    if dry_run:
        describe_change(f"{namespace}/{key}={entries[key]}", dry_run=True)
        return
    await confirm(f"Delete {namespace}/{key}={entries[key]}?", yes)
    await call.admin.cluster.delete_kv(namespace, key)
    _write_done(call, call.config.name_servers, f"deleted {namespace}/{key}")


_VERBS: dict[str, Callable[..., None]] = {
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
    **failover.VERBS,
    "drill": drill.drill,
}
for verb, function in _VERBS.items():
    app.command(verb)(function)
