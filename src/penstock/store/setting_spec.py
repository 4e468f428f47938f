"""What is known about one setting besides its value, and how its text becomes a value.

`setting_table.py` annotates each attribute with a `Setting`; `spec_of` joins that with the attribute's name,
type and default into a `Spec`, which reads text (`parse`), checks values (`check`) and writes text (`show`).
Nothing here knows a particular setting. Every refusal is a `BadSettings` of one sentence: the name, the
value, what is allowed.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from penstock.errors import BadSettings

JAVA_INT_MAX = 2**31 - 1


class EffectKind(StrEnum):
    HONOURED = "honoured"
    NO_EFFECT = "no effect"
    REFUSED = "refused when true"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a setting does in this store, and why if it does nothing."""

    kind: EffectKind
    why: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}" if self.why else str(self.kind)


HONOURED = Effect(EffectKind.HONOURED)


def no_effect(why: str) -> Effect:
    return Effect(EffectKind.NO_EFFECT, why)


def refused(why: str) -> Effect:
    return Effect(EffectKind.REFUSED, why)


class Origin(Enum):
    """Who else knows the name."""

    BROKER_CONF = "RocketMQ reads it from broker.conf"
    SYSTEM_PROPERTY = "RocketMQ reads it from a Java system property"
    PENSTOCK = "Penstock's own; RocketMQ does not know it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the table says about an attribute."""

    meaning: str
    section: str
    effect: Effect
    origin: Origin
    name: str
    aliases: tuple[str, ...]
    low: float
    high: float
    dev: Any


@dataclass(frozen=True, slots=True)
class Section:
    """A group of settings on the reference page; calling it describes one of them."""

    title: str
    effect: Effect = HONOURED
    origin: Origin = Origin.BROKER_CONF

    def __call__(
        self,
        meaning: str,
        effect: Effect | None = None,
        *,
        name: str = "",
        aliases: tuple[str, ...] = (),
        low: float = 0,
        high: float = JAVA_INT_MAX,
        dev: Any = None,
    ) -> Setting:
        """`name` only where it is not the attribute in camelCase; `dev` only where that profile differs."""
        return Setting(
            meaning=meaning,
            section=self.title,
            effect=effect or self.effect,
            origin=self.origin,
            name=name,
            aliases=aliases,
            low=low,
            high=high,
            dev=dev,
        )


@dataclass(frozen=True, slots=True)
class Spec:
    """One setting: attribute, RocketMQ's name, type, default, and what the table says."""

    attribute: str
    name: str
    kind: type
    optional: bool
    default: Any
    about: Setting

    def parse(self, text: str) -> Any:
        """The value that a text from broker.conf or the command line stands for."""
        text = text.strip()
        if self.optional and not text:
            return None
        if self.kind is bool:
            return {"true": True, "false": False}.get(text.lower(), text)
        with contextlib.suppress(ValueError):
            if self.kind is int and re.fullmatch(r"[+-]?[0-9]+", text):
                return int(text)
            if self.kind is float:
                return float(text)
        return text

    def check(self, value: Any) -> Any:
        """The value in its proper type, or BadSettings."""
        if value is None and self.optional:
            return None
        if issubclass(self.kind, Enum):
            return self._member(value)
        if self.kind is Path and isinstance(value, str | Path) and str(value):
            return _at_home(Path(value))
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is not self.kind:
            raise self.wrong(value)
        if isinstance(value, int | float) and not self.about.low <= value <= self.about.high:
            raise self.wrong(value)
        return value

    def _member(self, value: Any) -> Any:
        try:
            return self.kind(value)
        except ValueError:
            raise self.wrong(value) from None

    def show(self, value: Any) -> str:
        """The text that `parse` reads back."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value)

    def allowed(self) -> str:
        if self.kind is bool:
            return "true or false"
        if self.kind is int:
            return f"a whole number from {self.about.low} to {self.about.high}"
        if self.kind is float:
            return f"a number from {self.about.low} to {self.about.high}"
        if issubclass(self.kind, Enum):
            return " or ".join(str(member.value) for member in self.kind)
        return "a path" if self.kind is Path else "text"

    def wrong(self, value: Any, allowed: str = "") -> BadSettings:
        return BadSettings(f"setting {self.name} is {self.show(value)!r}; it must be {allowed or self.allowed()}")


def spec_of(attribute: str, hint: Any, default: Any) -> Spec:
    """Joins an attribute `name: Annotated[type, Setting]` and its default."""
    annotated, about = get_args(hint)
    kinds = get_args(annotated) or (annotated,)
    return Spec(
        attribute=attribute,
        name=about.name or camel_case(attribute),
        kind=next(kind for kind in kinds if kind is not NoneType),
        optional=NoneType in kinds,
        default=default,
        about=about,
    )


def camel_case(attribute: str) -> str:
    first, *rest = attribute.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _at_home(path: Path) -> Path:
    with contextlib.suppress(RuntimeError):  # this user has no home folder
        return path.expanduser()
    return path
