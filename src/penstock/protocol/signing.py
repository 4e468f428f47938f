"""RocketMQ's ACL signature: a command's arguments and body, signed with an account's secret key.

The signature is the Base64 of an HMAC-SHA1. The signed text is the values of all arguments except `Signature`, in the
order of their names, followed by the body. The signature authenticates the sender, and protects the arguments and the
body against changes. It covers neither the request's code, nor the names of the arguments, nor a time: an eavesdropper
can record a command and send it again, even under another code.

Penstock's own clients therefore seal what they sign (`RequestSigner`): one more argument, whose name comes first in the
order, has the request's code, the time, and a number that the client uses once. RocketMQ's brokers ignore it. So the
signed text begins with the seal, under whatever names an attacker sends it, and `seal_of` finds it there.

`master_proof` is the answer of a master to a slave that shares an account with it, in Penstock only.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final, NamedTuple

from penstock.clock import now_ms
from penstock.errors import BadRequest
from penstock.protocol.command import Command
from penstock.protocol.headers.pull import UNIQUE_KEY_QUERY

SEAL: Final = "0penstock"
"""The name of the argument with the seal. It sorts before all other names, which begin with a letter or `_`."""
_MARK: Final = "penstock1:"
_CODE, _TIME, _SESSION, _NUMBER = 8, 15, 16, 16
_SEAL_LENGTH: Final = len(_MARK) + _CODE + _TIME + _SESSION + _NUMBER
"""A seal is the mark and these four fields, each padded to its width, so that it ends at a known place."""

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"


def sign(command: Command, access_key: str, secret_key: str, security_token: str | None = None) -> None:
    """Adds the account and the signature to the command's arguments."""
    command.ext[ACCESS_KEY] = access_key
    if security_token:
        command.ext[SECURITY_TOKEN] = security_token
    command.ext[SIGNATURE] = signature(command.ext, command.body, secret_key)


class Seal(NamedTuple):
    """What a sealed request says about itself."""

    code: int
    time_ms: int
    """When it was signed, in epoch ms."""
    session: str
    """A random text of the client."""
    number: int
    """The client's number of this request; larger than those of its earlier requests."""


class RequestSigner:
    """Seals and signs the requests of one client. Create one for each client: no two may share the random session."""

    def __init__(
        self,
        access_key: str,
        secret_key: str,
        security_token: str | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._account = access_key, secret_key, security_token
        self._clock = clock
        self._session = secrets.token_hex(_SESSION // 2)
        self._numbers = count(1)

    def sign(self, command: Command) -> None:
        """Adds seal, account and signature to a request. Callers must not change the request afterwards."""
        number = next(self._numbers)
        command.ext[SEAL] = f"{_MARK}{command.code:0{_CODE}}{self._clock():0{_TIME}}{self._session}{number:0{_NUMBER}}"
        sign(command, *self._account)


def seal_of(command: Command) -> Seal | None:
    """Returns the seal of a signed request with an account; None if its client does not seal. Raises BadRequest.

    Looks at the signed text, not at the argument's name, which is not signed.
    """
    first = command.ext[min(command.ext)]
    if first and first[0] != _MARK[0]:
        return None  # the usual case of a client that does not seal, without putting the text together
    text = _signed_values(command.ext)[:_SEAL_LENGTH]
    if not text.startswith(_MARK):
        return None
    code, rest = text[len(_MARK) :][:_CODE], text[len(_MARK) + _CODE :]
    time_ms, session, number = rest[:_TIME], rest[_TIME : _TIME + _SESSION], rest[_TIME + _SESSION :]
    if len(text) != _SEAL_LENGTH or not all(each.isascii() and each.isdigit() for each in (code, time_ms, number)):
        raise BadRequest("a request has a seal that cannot be read")
    return Seal(int(code), int(time_ms), session, int(number))


def _signed_values(ext: Mapping[str, str]) -> str:
    return "".join(ext[name] for name in sorted(ext) if name != SIGNATURE)


def signature(ext: Mapping[str, str], body: bytes | memoryview, secret_key: str) -> str:
    """Returns the signature of these arguments and this body."""
    signer = hmac.new(secret_key.encode(), _signed_values(ext).encode("utf-8", "replace"), "sha1")
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


def master_proof(secret_key: str, *facts: str) -> str:
    """Returns what a master answers to prove that it knows a secret: an HMAC-SHA256 over facts that both sides know."""
    signer = hmac.new(secret_key.encode(), b"penstock master", "sha256")
    for fact in facts:
        data = fact.encode("utf-8", "replace")
        signer.update(len(data).to_bytes(4, "big") + data)
    return signer.hexdigest()
