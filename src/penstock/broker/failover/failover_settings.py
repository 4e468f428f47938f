"""What the settings say about failover: how to reach the engine, the limits of the rules, and what contradicts it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from penstock.broker.failover.consensus_engine import Acks, Session
from penstock.broker.failover.election_rules import Limits
from penstock.broker.failover.etcd import EtcdNodes, EtcdSession
from penstock.broker.settings import DCS_TLS_NAMES, BrokerSettings
from penstock.errors import BadSettings, MissingPackage
from penstock.remoting.tls import client_tls
from penstock.store.settings import Settings

_DECIDED: Final = {"broker_role": "brokerRole", "ha_master_address": "haMasterAddress"}
_DECIDED_HERE: Final = {"brokerId", "masterAddr"}
_ACCOUNT_LINE: Final = re.compile(r"(user|password)\s*[:=]\s*(\S.*?)\s*")


def check_failover(settings: Settings) -> None:
    """Raises BadSettings if the settings decide what the engine decides, or the brokers could not find each other."""
    given = [name for attribute, name in _DECIDED.items() if attribute in settings.given]
    given += sorted(_DECIDED_HERE & settings.broker.keys())
    if given:
        raise BadSettings(f"with failover the brokers elect their master; remove {', '.join(given)}")
    if not settings.ha_listen_port:
        raise BadSettings("failover needs a fixed haListenPort: the other brokers have to know it")


def engine_of(settings: Settings, broker: BrokerSettings) -> Callable[[bool], Session]:
    """Returns what opens a session at the engine of the settings, with a lease or without.

    Raises BadSettings or MissingPackage.
    """
    user, password = ("", "") if broker.dcs_account_file is None else read_account(broker.dcs_account_file)
    addresses, tls = broker.engine_nodes, client_tls(_tls(settings.broker))
    prefix = f"{broker.dcs_prefix.rstrip('/')}/{broker.broker_cluster_name}/{broker.broker_name}"
    ttl_s = broker.failover_ttl_millis // 1000
    if broker.failover == "zookeeper":
        try:
            from penstock.broker.failover.zookeeper import ZookeeperNodes, ZookeeperSession
        except ModuleNotFoundError as error:
            if error.name != "kazoo":
                raise
            why = "failover=zookeeper needs the package kazoo: pip install 'penstock[zookeeper]'"
            raise MissingPackage(why) from None
        keepers = ZookeeperNodes(addresses=addresses, tls=tls, user=user, password=password)
        return lambda has_lease: ZookeeperSession(keepers, prefix, ttl_s if has_lease else 0)
    nodes = EtcdNodes(addresses=addresses, tls=tls, user=user, password=password)
    return lambda has_lease: EtcdSession(nodes, prefix, ttl_s if has_lease else 0)


def limits_of(broker: BrokerSettings) -> Limits:
    return Limits(election_wait_s=broker.election_wait_millis / 1000, lag_s=broker.ha_max_time_slave_not_catchup / 1000)


def acks_of(broker: BrokerSettings) -> Acks:
    return Acks.ALL if broker.all_ack_in_sync_state_set else Acks.NONE


def _tls(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties `dcs.tls.*` under the names of a client's; TLS is on if there are any."""
    found = {name: properties[name] for name in DCS_TLS_NAMES if name in properties}
    return {
        "tls.enable": str(bool(found)).lower(),
        **{name.replace("dcs.tls.", "tls.client."): text for name, text in found.items()},
    }


def read_account(path: Path) -> tuple[str, str]:
    """Returns the user and the password of an account file. Raises BadSettings."""
    try:
        text = path.read_text("utf-8")
        is_open = path.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadSettings(f"dcsAccountFile cannot be read: {why}; check the path and its rights", path=path) from None
    if is_open:
        raise BadSettings("dcsAccountFile must be readable by its owner only; run chmod 600", path=path)
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            matched = _ACCOUNT_LINE.fullmatch(line.strip())
            if matched is None:
                raise BadSettings(
                    "dcsAccountFile must have the lines `user: ...` and `password: ...` only; remove others", path=path
                )
            found[matched[1]] = matched[2]
    if found.keys() != {"user", "password"}:
        raise BadSettings("dcsAccountFile needs the lines `user: ...` and `password: ...`", path=path)
    return found["user"], found["password"]
