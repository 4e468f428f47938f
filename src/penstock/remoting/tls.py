"""TLS from PEM files, by RocketMQ's property names (`tls.server.certPath`, `tls.client.trustCertPath`, ...).

There are three differences from RocketMQ. A peer's certificate that the settings ask for is always verified. A client
verifies the server's certificate unless `tls.client.authServer=false`: against `tls.client.trustCertPath` or, without
it, the system's authorities. There is no built-in test certificate (`tls.test.mode.enable`): without
`tls.server.certPath` a server does not use TLS. Host names are not checked, because routes contain addresses. So every
certificate of a trusted authority is accepted: name your own authority. Pure functions, except that they read the
files.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.errors import BadSettings

SERVER_NAMES: Final = (
    "tls.server.mode",
    "tls.server.certPath",
    "tls.server.keyPath",
    "tls.server.keyPassword",
    "tls.server.trustCertPath",
    "tls.server.need.client.auth",
)
CLIENT_NAMES: Final = (
    "tls.enable",
    "tls.client.certPath",
    "tls.client.keyPath",
    "tls.client.keyPassword",
    "tls.client.authServer",
    "tls.client.trustCertPath",
)


class TlsMode(StrEnum):
    """Which connections a server accepts on its port: plain only, both, or TLS only."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's TLS settings. Without a context, the server accepts plain connections only."""

    mode: TlsMode = TlsMode.DISABLED
    context: ssl.SSLContext | None = None

    @property
    def peeks(self) -> bool:
        """Whether the server must look at a connection's first byte to tell TLS from plain."""
        return self.context is not None and self.mode is not TlsMode.DISABLED


PLAIN: Final = ServerTls()

_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


def server_tls(properties: Mapping[str, str]) -> ServerTls:
    """Returns the TLS settings in a server's properties; ignores other properties. Raises BadSettings."""
    mode = _mode(properties.get("tls.server.mode", TlsMode.PERMISSIVE))
    if mode is TlsMode.DISABLED:
        return PLAIN
    if not properties.get("tls.server.certPath"):
        if mode is TlsMode.ENFORCING:
            raise BadSettings("tls.server.mode is enforcing, which needs tls.server.certPath and tls.server.keyPath")
        return PLAIN
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_own(context, properties, "tls.server")
    asked = properties.get("tls.server.need.client.auth", "none").strip().lower()
    if asked not in _CLIENT_AUTH:
        raise BadSettings(f"tls.server.need.client.auth is {asked!r}; it must be none, optional or require")
    if asked != "none":
        trusted = properties.get("tls.server.trustCertPath", "")
        if not trusted:
            raise BadSettings(f"tls.server.need.client.auth is {asked}, which needs tls.server.trustCertPath")
        _load_trusted(context, trusted)
    context.verify_mode = _CLIENT_AUTH[asked]
    return ServerTls(mode, context)


def client_tls(properties: Mapping[str, str]) -> ssl.SSLContext | None:
    """Returns the TLS context that a client's properties ask for; None for plain connections. Raises BadSettings."""
    if properties.get("tls.enable", "false").strip().lower() != "true":
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    trusted = properties.get("tls.client.trustCertPath", "")
    if trusted:
        _load_trusted(context, trusted)
    elif properties.get("tls.client.authServer", "true").strip().lower() == "false":
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_default_certs()
    if properties.get("tls.client.certPath"):
        _load_own(context, properties, "tls.client")
    return context


def _mode(text: str) -> TlsMode:
    try:
        return TlsMode(text.strip().lower())
    except ValueError:
        raise BadSettings(f"tls.server.mode is {text!r}; it must be disabled, permissive or enforcing") from None


def _load_own(context: ssl.SSLContext, properties: Mapping[str, str], prefix: str) -> None:
    certificate, key = properties[f"{prefix}.certPath"], properties.get(f"{prefix}.keyPath", "")
    if not key:
        raise BadSettings(f"{prefix}.certPath is given, which needs {prefix}.keyPath")
    password = properties.get(f"{prefix}.keyPassword", "")  # never None: OpenSSL would ask for it at the terminal
    try:
        context.load_cert_chain(certificate, key, password)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadSettings(
            f"{prefix}.certPath {certificate} and {prefix}.keyPath {key} cannot be used: {why}; "
            "they must be a certificate and its key, in PEM form"
        ) from None


def _load_trusted(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise BadSettings(
            f"the trusted certificates cannot be read: {error.strerror or error}; they must be in PEM form", path=path
        ) from None
