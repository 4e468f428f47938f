"""RocketMQ's ACL signature: a command's arguments and body, signed with an account's secret key.

The signature is the Base64 of an HMAC-SHA1. The signed text is the values of all arguments except `Signature`, in the
order of their names, followed by the body. The signature authenticates the sender, and protects the arguments and the
body against changes. It does not prevent replay: an eavesdropper can record a command and send it again, and only TLS
prevents recording. Pure functions; no secret is kept.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import Final

from penstock.protocol.command import Command
from penstock.protocol.headers.pull import UNIQUE_KEY_QUERY

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"


def sign(command: Command, access_key: str, secret_key: str, security_token: str | None = None) -> None:
    """Adds the account and the signature to the command's arguments."""
    command.ext[ACCESS_KEY] = access_key
    if security_token:
        command.ext[SECURITY_TOKEN] = security_token
    command.ext[SIGNATURE] = signature(command.ext, command.body, secret_key)


def signature(ext: Mapping[str, str], body: bytes | memoryview, secret_key: str) -> str:
    """Returns the signature of these arguments and this body."""
    values = "".join(ext[name] for name in sorted(ext) if name != SIGNATURE)
    signer = hmac.new(secret_key.encode(), values.encode("utf-8", "replace"), "sha1")
    signer.update(body)
    return base64.b64encode(signer.digest()).decode()


def account_of(command: Command) -> str | None:
    """Returns a command's access key; None if it is missing, or empty as some clients without an account send it."""
    return command.ext.get(ACCESS_KEY) or None


def is_signed_with(command: Command, secret_key: str) -> bool:
    """Whether `secret_key` signed this command. Compares in constant time.

    Clients up to 4.9.3 add the argument `_UNIQUE_KEY_QUERY` after signing, so a signature without it is accepted as
    well.
    """
    given = command.ext.get(SIGNATURE, "").encode("utf-8", "replace")
    matches = hmac.compare_digest(signature(command.ext, command.body, secret_key).encode(), given)
    if UNIQUE_KEY_QUERY in command.ext:
        without = {name: value for name, value in command.ext.items() if name != UNIQUE_KEY_QUERY}
        matches |= hmac.compare_digest(signature(without, command.body, secret_key).encode(), given)
    return matches
