"""`penstock cluster replication`: who follows whom, and how far behind."""

from __future__ import annotations

import time
from typing import Any

from penstock.cli.network import Broker, Call, over_network
from penstock.cli.output import add_row, say, show, table, write, write_json
from penstock.errors import PenstockError
from penstock.protocol.bodies.ha import HaRuntimeInfo


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
            say(f"{address} does not tell: {error}")
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
