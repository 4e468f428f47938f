"""The name server: tells clients which brokers have a topic. It runs in the broker's process, or alone.

`NameServer` is the door; `RouteTable` holds what brokers registered, `KvTable` what administrators wrote.
"""

from penstock.namesrv.name_server import NameServer
from penstock.namesrv.route_table import RegisteredBroker, RouteTable
from penstock.namesrv.settings import NamesrvSettings

__all__ = ["NameServer", "NamesrvSettings", "RegisteredBroker", "RouteTable"]
