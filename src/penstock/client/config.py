"""The configuration of every kind of client: name servers, account, TLS and timeouts.

    ClientConfig("127.0.0.1:9876")
    ClientConfig("10.0.0.1:9876;10.0.0.2:9876", credentials=Credentials("app", "secret"))
    ClientConfig("10.0.0.1:9876", tls={"tls.enable": "true", "tls.client.trustCertPath": "ca.pem"})

If no address is given, the environment variable NAMESRV_ADDR applies, as in RocketMQ's own clients. The last default is
127.0.0.1:9876.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Final, TypeAlias

from penstock.config.setting_parser import LONG_MAX, Origin, Section, SettingTable
from penstock.errors import BadSettings
from penstock.protocol.signing import RequestSigner
from penstock.remoting.sockets import parse_address
from penstock.remoting.tls import client_tls


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account of RocketMQ's access control. `repr` shows neither secret nor token."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def signer(self) -> RequestSigner:
        """Returns what signs the requests of one client."""
        return RequestSigner(self.access_key, self.secret_key, self.security_token)


DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
SECONDS = Section("Seconds", Origin.PENSTOCK)


@dataclass(frozen=True)
class ClientConfig:
    """One client's configuration. Times are in seconds.

    The constructor raises BadSettings for an invalid address, an invalid time, or TLS files that cannot be loaded.
    """

    namesrv: str = ""
    """Name servers as `host:port`, separated by `;`. Each name server knows the whole cluster. The client skips one
    that does not answer.
    """
    _: KW_ONLY
    credentials: Credentials | None = None
    """The account that signs every request, for clusters with access control."""
    tls: ssl.SSLContext | Mapping[str, str] | None = field(default=None, repr=False)
    """A TLS context, or RocketMQ's `tls.*` properties; None for plain connections."""
    timeout_s: Annotated[float, SECONDS("longest wait for the reply to a request", high=LONG_MAX)] = 3.0
    connect_timeout_s: Annotated[float, SECONDS("longest wait for a connection", high=LONG_MAX)] = 3.0
    route_refresh_s: Annotated[float, SECONDS("period of fetching routes", high=LONG_MAX)] = 30.0
    heartbeat_s: Annotated[
        float, SECONDS("period of heartbeats; a broker drops a client after 120 without one", high=LONG_MAX)
    ] = 30.0

    def __post_init__(self) -> None:
        TABLE.check(self)
        namesrv = self.namesrv or os.environ.get("NAMESRV_ADDR", "") or DEFAULT_NAMESRV
        object.__setattr__(self, "namesrv", namesrv)
        if not self.name_servers:
            raise BadSettings(f"no name server in {self.namesrv!r}; write HOST:PORT, several joined by ';'")
        for address in self.name_servers:
            parse_address(address, "the name server")
        context = client_tls(self.tls) if isinstance(self.tls, Mapping) else self.tls
        object.__setattr__(self, "tls", context)

    @property
    def name_servers(self) -> list[str]:
        return [address.strip() for address in self.namesrv.split(";") if address.strip()]

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        return None if isinstance(self.tls, Mapping) else self.tls


TABLE: Final = SettingTable(ClientConfig, camel=False)
Namesrv: TypeAlias = "str | ClientConfig | None"
"""Name server addresses, or a whole configuration."""


def config_of(namesrv: Namesrv) -> ClientConfig:
    """Returns `namesrv` if it is a configuration, else a configuration with these name servers and defaults for the
    rest.
    """
    return namesrv if isinstance(namesrv, ClientConfig) else ClientConfig(namesrv or "")
