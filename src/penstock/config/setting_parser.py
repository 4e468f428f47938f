"""A table of settings. Each setting is defined once, in the annotation of the attribute that holds its value.

    FLUSH = Section("Flushing")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        sync_flush_timeout: Annotated[int, FLUSH("longest wait of a put for the disk, ms", low=1)] = 5000

        def __post_init__(self) -> None:
            TABLE.check(self)

    TABLE = SettingTable(Settings)

The store, the broker, the name server, the client and the Spark options each have a table. A table parses texts
(`read`), checks values (`check`) and formats them (`texts`). The reference pages are generated from the tables. An
invalid value raises BadSettings with one sentence: the name, the value, the allowed values, and the file and line.
Tables are immutable and thread-safe.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from penstock.config.ignored_settings import IGNORED
from penstock.config.java_properties import parse_properties
from penstock.errors import BadSettings

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
"""As the upper bound of a setting, this means that there is no bound."""


class Origin(Enum):
    """The program that defines a setting's name, and the place from which it reads the value."""

    BROKER_CONF = "RocketMQ reads it from broker.conf"
    SYSTEM_PROPERTY = "RocketMQ reads it from a Java system property"
    PENSTOCK = "Penstock's own; RocketMQ does not know it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. `Section` sets the fields up to `shown`; `SettingTable` sets the fields from `noun` on."""

    meaning: str
    section: str
    origin: Origin
    name: str = ""
    """The setting's name. In a definition, it is set only if it differs from the attribute in camelCase."""
    aliases: tuple[str, ...] = ()
    low: float = 0
    high: float = INT_MAX
    dev: Any = None
    """The value in the dev profile, or None if it is the default."""
    refused: str = ""
    """The reason why `true` is not supported; empty if it is supported."""
    parser: Callable[[str], Any] | None = None
    """A function that parses the text, instead of `kind`. It raises ValueError with a phrase for the allowed values."""
    shown: str = ""
    """The text for the default on the reference page, if it is not the attribute's default."""

    noun: str = "setting"
    attribute: str = ""
    kind: Any = str
    optional: bool = False
    default: Any = None

    def parse(self, text: str) -> Any:
        """Parses a text without checking the value. Returns a text that does not parse; `check` then rejects it.

        Raises BadSettings if `parser` rejects the text.
        """
        stripped = text.strip()
        if self.parser is not None:
            try:
                return self.parser(stripped)
            except ValueError as error:
                raise self.wrong(text, str(error)) from None
        if self.optional and not stripped and self.kind in (str, Path):
            return None
        if self.kind is bool:
            return {"true": True, "false": False}.get(stripped.lower(), stripped)
        with contextlib.suppress(ValueError):
            if self.kind is int and re.fullmatch(r"[+-]?[0-9]+", stripped):
                return int(stripped)
            if self.kind is float:
                return float(stripped)
        return stripped

    def check(self, value: Any) -> Any:
        """Returns the value, converted to its type. Raises BadSettings if the value is not allowed."""
        if self.parser is not None or (value is None and self.optional):
            return value
        if issubclass(self.kind, Enum):
            try:
                return self.kind(value)
            except ValueError:
                raise self.wrong(value) from None
        if self.kind is Path and isinstance(value, str | Path) and str(value):
            return _expand_user(Path(value))
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is not self.kind:
            raise self.wrong(value)
        if isinstance(value, int | float) and not self.low <= value <= self.high:
            raise self.wrong(value)
        if self.refused and value:
            raise self.wrong(value, f"it must be false: {self.refused}")
        return value

    def show(self, value: Any) -> str:
        """Returns the value as text, which `parse` can read."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value)

    def wrong(self, value: Any, why: str = "") -> BadSettings:
        """Returns the error for an invalid value. `why` states the allowed values, instead of type and bounds."""
        what = f"{self.noun} {self.name} is {self.show(value)!r}"
        return BadSettings("; ".join((what, why or f"it must be {self._allowed()}")))

    def _allowed(self) -> str:
        if self.kind is bool:
            return "true or false"
        if self.kind in (int, float):
            what = "a whole number" if self.kind is int else "a number"
            return (
                f"{what} of at least {self.low}" if self.high == LONG_MAX else f"{what} from {self.low} to {self.high}"
            )
        if issubclass(self.kind, Enum):
            return " or ".join(str(member.value) for member in self.kind)
        return "a path" if self.kind is Path else "text"


@dataclass(frozen=True, slots=True)
class Section:
    """A group of settings on the reference page. Calling a section creates one of its settings."""

    title: str
    origin: Origin = Origin.BROKER_CONF

    def __call__(self, meaning: str, **about: Any) -> Setting:
        """Returns a setting of this section. `about` are further fields of `Setting`."""
        return Setting(meaning=meaning, section=self.title, origin=self.origin, **about)


class SettingTable:
    """The settings of one program, made from the annotated attributes of a dataclass."""

    def __init__(
        self, shape: type, *, noun: str = "setting", kept: Iterable[str] = (), shares: str = "", camel: bool = True
    ) -> None:
        """`shape` is the dataclass. `noun` is the word for a setting in errors. `camel` makes names camelCase.

        `kept` are names whose texts the program parses itself. `shares` is the `module:TABLE` of another program that
        reads the same file. That module is imported only for a name that is not in this table, so it may be in a higher
        layer.
        """
        self.noun = noun
        self._kept = frozenset(kept)
        self._shares = shares
        self._settings: dict[str, Setting] = {}
        hints = get_type_hints(shape, include_extras=True)
        for each in fields(shape):
            kind, *about = get_args(hints[each.name]) or (None,)
            if about and isinstance(about[0], Setting):
                name = about[0].name or (_camel_case(each.name) if camel else each.name)
                self._settings[each.name] = replace(
                    about[0], noun=noun, name=name, attribute=each.name, default=each.default, **_kind(kind)
                )
        self.by_name = {name: setting for setting in self for name in (setting.name, *setting.aliases)}
        """The settings by name and by accepted alias."""

    def __iter__(self) -> Iterator[Setting]:
        return iter(self._settings.values())

    def __getitem__(self, attribute: str) -> Setting:
        return self._settings[attribute]

    def __contains__(self, attribute: str) -> bool:
        return attribute in self._settings

    @cached_property
    def other(self) -> SettingTable | None:
        """The table of the other program that reads the same file, or None."""
        return load_name(self._shares) if self._shares else None

    @cached_property
    def _others(self) -> frozenset[str]:
        """Known names that are not in this table."""
        shared = frozenset(self.other.by_name) | self.other._kept if self.other is not None else frozenset()
        return IGNORED | self._kept | shared

    def check(self, values: object) -> None:
        """Checks an object of this table's dataclass and converts its values to their types. Raises BadSettings."""
        for setting in self:
            object.__setattr__(values, setting.attribute, setting.check(getattr(values, setting.attribute)))

    def texts(self, values: object) -> dict[str, str]:
        """Returns every value as text, by name. `values` is an object of this table's dataclass."""
        return {setting.name: setting.show(getattr(values, setting.attribute)) for setting in self}

    def parse(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Returns the parsed values by attribute, from texts by name. Skips names that are not in this table."""
        known = ((self.by_name[name], text) for name, text in texts.items() if name in self.by_name)
        return {setting.attribute: setting.parse(text) for setting, text in known}

    def read(self, conf_path: str | Path | None, pairs: Iterable[str]) -> tuple[dict[str, Any], dict[str, str]]:
        """Reads a properties file, then `name=value` pairs. A later value replaces an earlier value of the same name.

        Returns values by attribute, and the texts of known names that are not in this table. Raises BadSettings, with
        path and line for an error in the file.
        """
        values: dict[str, Any] = {}
        texts: dict[str, str] = {}
        if conf_path is not None:
            for line, name, text in _entries(Path(conf_path)):
                try:
                    self._add(name, text, values, texts)
                except BadSettings as error:
                    raise BadSettings(f"line {line}: {error}", path=Path(conf_path)) from error
        for pair in pairs:
            name, equals, text = pair.partition("=")
            if not equals or not name.strip():
                raise BadSettings(f"'{pair}' is not a {self.noun}; write name=value")
            self._add(name.strip(), text, values, texts)
        return values, texts

    def knows(self, name: str) -> bool:
        """Whether a file of this table may contain the name: of this or the other program, or without effect."""
        return name in self.by_name or name in self._others

    def unknown(self, name: str) -> BadSettings:
        """Returns the error for a name that is not known, with the most similar one that is."""
        near = nearest(name, (*self.by_name, *self._others))
        return BadSettings(f"unknown {self.noun} '{name}'; {_hint(near, self.noun)}")

    def _add(self, name: str, text: str, values: dict[str, Any], texts: dict[str, str]) -> None:
        setting = self.by_name.get(name)
        if setting is not None:
            values[setting.attribute] = setting.check(setting.parse(text))
        elif name in self._others:
            texts[name] = text.strip()
        else:
            raise self.unknown(name)


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the known name that is most similar to `name`, ignoring case, or "" if no name is similar."""
    lowered = {each.lower(): each for each in sorted(known)}
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    return lowered[close[0]] if close else ""


def _hint(near: str, noun: str) -> str:
    return f"did you mean '{near}'?" if near else f"no known {noun} has a similar name"


def load_name(reference: str) -> Any:
    """Imports a module and returns its object, for a reference `module:NAME`."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def _entries(path: Path) -> Iterator[tuple[int, str, str]]:
    try:
        entries = parse_properties(path.read_bytes())
    except OSError as error:
        raise BadSettings(
            f"cannot read the settings: {error.strerror}; check the path and its permissions", path=path
        ) from error
    except ValueError as error:
        raise BadSettings(str(error), path=path) from error
    return ((entry.line, entry.name, entry.value) for entry in entries)


def _kind(annotated: Any) -> dict[str, Any]:
    """Returns the fields `kind` and `optional` of a setting: the type of its value, and whether it may be None."""
    kinds = get_args(annotated) if get_origin(annotated) in (Union, UnionType) else (annotated,)
    return {"kind": next(kind for kind in kinds if kind is not NoneType), "optional": NoneType in kinds}


def _camel_case(attribute: str) -> str:
    first, *rest = attribute.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _expand_user(path: Path) -> Path:
    with contextlib.suppress(RuntimeError):  # this user has no home folder
        return path.expanduser()
    return path
