"""The access file: accounts, their rights, and white addresses, in the format of RocketMQ's plain_acl.yml.

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

A request from a global white address needs neither account nor rights. A request that names an account and comes from
that account's white address needs neither signature nor rights. Forms of address patterns:

    10.1.2.3    10.1.*.*    10.1.2.3-60    10.1.2.{3,4,7}    10.1.2.3,10.1.2.4    10.1.0.0/16    fe80::1    *

An empty pattern matches no address. A file is accepted as a whole or not at all. Values are immutable. The `repr` of an
account does not show its secret.

`change_access_file` replaces the file atomically, with mode 0600, and keeps the previous one as `<name>.bak`. It reads
the file first, so that what was edited by hand stays; only comments are lost. An entry that this module does not know
stays as it is.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.broker.topics import CHECK_MAX_TIME_TOPIC, REPLY_TOPIC_SUFFIX
from penstock.errors import BadSettings
from penstock.format.constants import DLQ_PREFIX, HALF_TOPIC, SCHEDULE_TOPIC
from penstock.store.files.file_io import Files

# -- addresses -----------------------------------------------------------------------------------------------

Matches = Callable[[str], bool]
"""Takes an address without its port; returns whether it matches."""
_OUTSIDE_BRACES = re.compile(r",(?![^{]*\})")


def matcher(pattern: str) -> Matches:
    """Compiles an address pattern, or several joined by commas. Raises ValueError with the reason."""
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
        raise ValueError(f"'{pattern}' is not an address: it needs four numbers")
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
            raise ValueError(f"'{pattern}' is not an address: '{part}' is not a number, range or list")
        if not 0 <= int(first) <= int(last) <= 255:
            raise ValueError(f"'{pattern}' is not an address: '{part}' is not within 0 to 255")
        yield from range(int(first), int(last) + 1)


# -- accounts ------------------------------------------------------------------------------------------------

DENY: Final = 0
PUB: Final = 1
SUB: Final = 2
ANY: Final = PUB | SUB
_RIGHTS: Final = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": ANY, "SUB|PUB": ANY}
_TEXTS: Final = {DENY: "DENY", PUB: "PUB", SUB: "SUB", ANY: "PUB|SUB"}
_MIN_LENGTH: Final = 7
"""Minimum length of accessKey and secretKey in characters, as in RocketMQ."""
_MAX_BYTES: Final = 8 << 20


WAITING_TOPICS: Final = frozenset({HALF_TOPIC, SCHEDULE_TOPIC, CHECK_MAX_TIME_TOPIC})
"""Topics of the broker whose messages belong to other topics. Who may read these is not who may read those."""


def holds_messages_of_others(topic: str) -> bool:
    """Whether messages of other topics lie in this one: waiting, dead letters, or copies of replies."""
    return topic in WAITING_TOPICS or topic.startswith(DLQ_PREFIX) or topic.endswith(REPLY_TOPIC_SUFFIX)


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One account. Rights are sums of the bits PUB and SUB; DENY is 0."""

    access_key: str
    secret_key: str
    is_white: Matches
    white: str = ""
    """The address pattern that `is_white` was compiled from, as in the file."""
    admin: bool = False
    default_topic: int = DENY
    default_group: int = DENY
    topics: Mapping[str, int] = {}
    groups: Mapping[str, int] = {}

    def may(self, wanted: int, *, topic: str = "", group: str = "") -> bool:
        """Whether the account has at least one of the rights `wanted` on the group, if given, or else on the topic.

        Rights that the file lists for a topic or group come first, even for an administrator. An administrator has all
        other rights; another account has its default rights, but not on a topic with messages of others.
        """
        named = self.groups.get(group) if group else self.topics.get(topic)
        if named is None:
            default = self.default_group if group else DENY if holds_messages_of_others(topic) else self.default_topic
            named = ANY if self.admin else default
        return named & wanted != 0

    def __repr__(self) -> str:
        return f"<account {self.access_key}>"


class Accounts(msgspec.Struct, frozen=True):
    """The contents of one access file."""

    by_key: Mapping[str, Account]
    is_white: Matches
    white: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: Path) -> Accounts:
        """Reads the access file. Raises BadSettings, which never quotes a secret."""
        document = _read_document(path)
        try:
            return cls.of(document)
        except ValueError as error:
            raise BadSettings(f"the access file cannot be used: {error}; correct it", path=path) from None

    @classmethod
    def of(cls, document: Any) -> Accounts:
        """Builds the accounts from the parsed YAML document. Raises ValueError with the reason."""
        if not isinstance(document, dict):
            raise ValueError("it contains neither accounts nor addresses")
        white = [_text(each, "an address") for each in _list(document, "globalWhiteRemoteAddresses")]
        by_key: dict[str, Account] = {}
        for number, entry in enumerate(_list(document, "accounts"), 1):
            account = _account(entry, number)
            if account.access_key in by_key:
                raise ValueError(f"account {account.access_key} is defined twice")
            by_key[account.access_key] = account
        if not by_key and not white:
            raise ValueError("it contains neither accounts nor addresses, so every request would be refused")
        tests = [matcher(pattern) for pattern in white]
        return cls(by_key, lambda address: any(test(address) for test in tests), tuple(white))


class UnreadableAccessFile(BadSettings):
    """The file is missing or cannot be read now, which says nothing about its content."""


def _read_document(path: Path) -> Any:
    """Returns the parsed YAML document. Raises BadSettings, which never quotes a secret."""
    import yaml  # imported only if access control is on

    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UnreadableAccessFile(
            f"the access file cannot be read: {error.strerror}; check aclFile and its permissions", path=path
        ) from None
    if len(data) > _MAX_BYTES:
        raise BadSettings(f"the access file is larger than {_MAX_BYTES >> 20} MiB; remove unused accounts", path=path)
    try:
        return yaml.safe_load(data)
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f" in line {error.problem_mark.line + 1}"
        # YAML's own words may quote the line, and so a secret: they are left out.
        raise BadSettings(f"the access file is not valid YAML{where}; correct it", path=path) from None
    except (yaml.YAMLError, ValueError):
        raise BadSettings("the access file cannot be used: it is not valid YAML; correct it", path=path) from None


def _account(entry: Any, number: int) -> Account:
    if not isinstance(entry, dict):
        raise ValueError(f"account {number} has no accessKey")
    key, secret = (_text(entry.get(name), f"account {number}: {name}") for name in ("accessKey", "secretKey"))
    if len(key) < _MIN_LENGTH or len(secret) < _MIN_LENGTH:
        raise ValueError(f"account {number}: accessKey and secretKey need at least {_MIN_LENGTH} characters each")
    admin = entry.get("admin", False)
    if not isinstance(admin, bool):
        raise ValueError(f"account {key}: admin must be true or false")
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
            raise ValueError(f"account {key}: '{entry}' is not a permission; write name=PUB|SUB")
        rights[name.strip()] = _right(right, key)
    return rights


def right_text(right: int) -> str:
    """Returns a right as the file writes it."""
    return _TEXTS[right]


def _right(text: Any, key: str) -> int:
    right = _RIGHTS.get("".join(str(text).split()).upper())
    if right is None:
        raise ValueError(f"account {key}: '{text}' is not a right; it must be DENY, PUB, SUB or PUB|SUB")
    return right


def _list(document: dict[Any, Any], name: str) -> list[Any]:
    entries = document.get(name) or []
    if not isinstance(entries, list):
        raise ValueError(f"{name} is not a list")
    return entries


def _text(value: Any, what: str) -> str:
    """Returns a string, or an int as a string, because YAML reads a key of digits as a number. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{what} is missing or not text")
    return str(value)


# -- changes -------------------------------------------------------------------------------------------------

Change = Callable[[dict[Any, Any]], None]
"""Changes the file's document in place. Raises ValueError with the reason if it cannot."""


def set_account(access_key: str, given: Mapping[str, Any]) -> Change:
    """Creates an account, or changes it. `given` are the values to set, by the names in the file; others stay."""

    def change(document: dict[Any, Any]) -> None:
        entry = _find(document, access_key)
        if entry is None:
            entry = {"accessKey": access_key}
            document["accounts"] = [*_list(document, "accounts"), entry]
        entry.update(given)

    return change


def delete_account(access_key: str) -> Change:
    def change(document: dict[Any, Any]) -> None:
        entry = _find(document, access_key)
        if entry is None:
            raise ValueError(f"there is no account {access_key[:127]}")
        document["accounts"] = [each for each in _list(document, "accounts") if each is not entry]

    return change


def set_white_addresses(patterns: str) -> Change:
    """Replaces the global white addresses by those in a text, joined by commas."""
    pieces = [piece.strip() for piece in _OUTSIDE_BRACES.split(patterns) if piece.strip()]

    def change(document: dict[Any, Any]) -> None:
        document["globalWhiteRemoteAddresses"] = pieces

    return change


def _find(document: dict[Any, Any], access_key: str) -> dict[Any, Any] | None:
    entries = (each for each in _list(document, "accounts") if isinstance(each, dict))
    return next((each for each in entries if str(each.get("accessKey")) == access_key), None)


def change_access_file(path: Path, change: Change) -> None:
    """Changes the file. Waits for the disk; one thread at a time may call it.

    Raises BadSettings if the file as it is, or as it would be, cannot be used, or if it would lose its last
    administrator; StoreFailed if the disk refuses. Then the file is unchanged.
    """
    import yaml

    path = path.resolve()  # a link stays a link
    document = _read_document(path)
    try:
        had_administrator = _has_administrator(Accounts.of(document))
        change(document)
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        changed = Accounts.of(yaml.safe_load(text))
        if had_administrator and not _has_administrator(changed):
            raise ValueError("no account would be an administrator any more")
        if len(text.encode()) > _MAX_BYTES:
            raise ValueError(f"the access file would be larger than {_MAX_BYTES >> 20} MiB")
    except (yaml.YAMLError, ValueError) as error:
        why = "a value cannot be written as YAML" if isinstance(error, yaml.YAMLError) else str(error)
        raise BadSettings(f"the accounts are unchanged: {why}; change the request, or edit the file") from None
    Files().replace_bytes(path, text.encode(), keep_backup=True)


def _has_administrator(accounts: Accounts) -> bool:
    return any(account.admin for account in accounts.by_key.values())
