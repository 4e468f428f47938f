"""An account of RocketMQ's access control: signs every request that a client sends."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocol.command import Command
from penstock.protocol.signing import sign


@dataclass(frozen=True, slots=True)
class Credentials:
    """Printed, it shows neither secret nor token."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def sign(self, command: Command) -> None:
        """Adds account and signature to the request; nothing in it may change afterwards."""
        sign(command, self.access_key, self.secret_key, self.security_token)
