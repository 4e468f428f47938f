"""Patterns of remote addresses as plain_acl.yml has them: whoever comes from such an address is not asked for more.

    10.1.2.3    10.1.*.*    10.1.2.3-60    10.1.2.{3,4,7}    10.1.2.3,10.1.2.4    10.1.0.0/16    fe80::1    *

Nothing, or blank text, matches nobody.


Accounts and their rights, from a file of the shape of RocketMQ's plain_acl.yml.

    globalWhiteRemoteAddresses: [10.10.15.*]
    accounts:
      - accessKey: reporting
        secretKey: keep-this-to-yourself
        whiteRemoteAddress: ""
        admin: false
        defaultTopicPerm: DENY
        defaultGroupPerm: SUB
        topicPerms: [orders=SUB, audit=PUB|SUB]
        groupPerms: [CID_reports=SUB]

A file is taken whole or not at all. Values are immutable; printed, an account does not show its secret.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.errors import BadSettings

Matches = Callable[[str], bool]
"""Whether an address, without its port, is meant."""
_OUTSIDE_BRACES = re.compile(r",(?![^{]*\})")


def matcher(pattern: str) -> Matches:
    """What matches a pattern, or several joined by commas. Raises ValueError with a phrase that says what is wrong."""
    tests = [_one(piece.strip()) for piece in _OUTSIDE_BRACES.split(pattern) if piece.strip()]
    return lambda address: any(test(address) for test in tests)


def _one(pattern: str) -> Matches:
    if pattern == "*" or set(pattern.split(".")) == {"*"}:
        return lambda address: True
    if ":" in pattern or "/" in pattern:
        network = ipaddress.ip_network(pattern, strict=False)
        return lambda address: ipaddress.ip_address(address) in network
    parts = pattern.split(".")
    if len(parts) != 4:
        raise ValueError(f"'{pattern}' is no address: it needs four numbers")
    allowed = [frozenset(_numbers(part, pattern)) for part in parts]

    def test(address: str) -> bool:
        numbers = address.split(".")
        return len(numbers) == 4 and all(int(number) in wanted for number, wanted in zip(numbers, allowed, strict=True))

    return lambda address: ":" not in address and test(address)


def _numbers(part: str, pattern: str) -> Iterator[int]:
    if part == "*":
        yield from range(256)
        return
    pieces = part[1:-1].split(",") if part.startswith("{") and part.endswith("}") else [part]
    for piece in pieces:
        low, dash, high = (side.strip() for side in piece.partition("-"))
        first, last = low, high if dash else low
        if not (first.isascii() and first.isdecimal() and last.isascii() and last.isdecimal()):
            raise ValueError(f"'{pattern}' is no address: '{part}' is no number, range or list")
        if not 0 <= int(first) <= int(last) <= 255:
            raise ValueError(f"'{pattern}' is no address: '{part}' is not within 0 to 255")
        yield from range(int(first), int(last) + 1)


DENY: Final = 0
PUB: Final = 1
SUB: Final = 2
ANY: Final = PUB | SUB
_RIGHTS: Final = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": ANY, "SUB|PUB": ANY}
_TEXTS: Final = {DENY: "DENY", PUB: "PUB", SUB: "SUB", ANY: "PUB|SUB"}
_SHORTEST: Final = 7
"""Of keys, as in RocketMQ."""
_LARGEST: Final = 8 << 20


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One account. Rights are bits: PUB, SUB."""

    access_key: str
    secret_key: str
    is_white: Matches
    white: str = ""
    """The addresses for which `is_white` is true, as the file has them."""
    admin: bool = False
    default_topic: int = DENY
    default_group: int = DENY
    topics: Mapping[str, int] = {}
    groups: Mapping[str, int] = {}

    def may(self, wanted: int, *, topic: str = "", group: str = "") -> bool:
        """Whether it has one of the rights that are wanted. An administrator lacks only what is denied by name."""
        named = self.groups.get(group) if group else self.topics.get(topic)
        if named is None:
            named = ANY if self.admin else self.default_group if group else self.default_topic
        return named & wanted != 0

    def __repr__(self) -> str:
        return f"<account {self.access_key}>"


class Accounts(msgspec.Struct, frozen=True):
    """What one file says."""

    by_key: Mapping[str, Account]
    is_white: Matches
    white: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: Path) -> Accounts:
        """Reads the file. Raises BadSettings, which never quotes what the file holds."""
        import yaml  # only with access control on

        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST + 1)
        except OSError as error:
            raise BadSettings(
                f"the access file cannot be read: {error.strerror}; check aclFile and who may read it", path=path
            ) from None
        if len(data) > _LARGEST:
            raise BadSettings(
                f"the access file is larger than {_LARGEST >> 20} MiB; remove accounts that nobody uses", path=path
            )
        try:
            return cls.of(yaml.safe_load(data))
        except yaml.MarkedYAMLError as error:
            where = "" if error.problem_mark is None else f" in line {error.problem_mark.line + 1}"
            raise BadSettings(f"the access file must be YAML, and is not{where}: {error.problem}", path=path) from None
        except (yaml.YAMLError, ValueError) as error:
            why = "it is no YAML" if isinstance(error, yaml.YAMLError) else str(error)
            raise BadSettings(f"the access file cannot be used: {why}; correct it", path=path) from None

    @classmethod
    def of(cls, document: Any) -> Accounts:
        """Raises ValueError with a phrase that says what is wrong."""
        if not isinstance(document, dict):
            raise ValueError("it has neither accounts nor addresses")
        white = [_text(each, "an address") for each in _list(document, "globalWhiteRemoteAddresses")]
        by_key: dict[str, Account] = {}
        for number, entry in enumerate(_list(document, "accounts"), 1):
            account = _account(entry, number)
            if account.access_key in by_key:
                raise ValueError(f"the account {account.access_key} is there twice")
            by_key[account.access_key] = account
        if not by_key and not white:
            raise ValueError("it has neither accounts nor addresses, so nobody could do anything")
        tests = [matcher(pattern) for pattern in white]
        return cls(by_key, lambda address: any(test(address) for test in tests), tuple(white))


def _account(entry: Any, number: int) -> Account:
    if not isinstance(entry, dict):
        raise ValueError(f"account {number} has no accessKey")
    key, secret = (_text(entry.get(name), f"account {number}: {name}") for name in ("accessKey", "secretKey"))
    if len(key) < _SHORTEST or len(secret) < _SHORTEST:
        raise ValueError(f"account {number}: accessKey and secretKey need at least {_SHORTEST} characters each")
    admin = entry.get("admin", False)
    if not isinstance(admin, bool):
        raise ValueError(f"account {key}: admin is true or false")
    white = _text(entry.get("whiteRemoteAddress") or "", f"account {key}: whiteRemoteAddress")
    return Account(
        access_key=key,
        secret_key=secret,
        is_white=matcher(white),
        white=white,
        admin=admin,
        default_topic=_right(entry.get("defaultTopicPerm") or "DENY", key),
        default_group=_right(entry.get("defaultGroupPerm") or "DENY", key),
        topics=_rights(_list(entry, "topicPerms"), key),
        groups=_rights(_list(entry, "groupPerms"), key),
    )


def _rights(entries: list[Any], key: str) -> dict[str, int]:
    rights = {}
    for entry in entries:
        name, equals, right = _text(entry, f"account {key}: a permission").partition("=")
        if not equals or not name.strip():
            raise ValueError(f"account {key}: '{entry}' is no permission; write name=PUB|SUB")
        rights[name.strip()] = _right(right, key)
    return rights


def right_text(right: int) -> str:
    """A right as the file has it."""
    return _TEXTS[right]


def _right(text: Any, key: str) -> int:
    found = _RIGHTS.get("".join(str(text).split()).upper())
    if found is None:
        raise ValueError(f"account {key}: '{text}' is no right; it is DENY, PUB, SUB or PUB|SUB")
    return found


def _list(document: dict[Any, Any], name: str) -> list[Any]:
    found = document.get(name) or []
    if not isinstance(found, list):
        raise ValueError(f"{name} is no list")
    return found


def _text(value: Any, what: str) -> str:
    """Keys of digits only are numbers to YAML, and are meant as text."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{what} is missing, or no text")
    return str(value)
