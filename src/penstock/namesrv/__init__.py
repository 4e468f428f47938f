"""The name server: answers which brokers have a topic. It runs in the broker's process or on its own.

`NameServer` is the entry point. `RouteTable` holds the registered brokers and their topics. `handlers.KvTable` holds
the KV configuration.
"""

from penstock.namesrv.name_server import NameServer
from penstock.namesrv.route_table import RegisteredBroker, RouteTable
from penstock.namesrv.settings import NamesrvSettings

__all__ = ["NameServer", "NamesrvSettings", "RegisteredBroker", "RouteTable"]
