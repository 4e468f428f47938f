"""The store's settings: one frozen, typed object with RocketMQ's names and defaults.

    Settings()                                          RocketMQ 4.9.8's defaults
    Settings(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    Settings.dev()                                      small files, for a laptop or a test
    Settings.load("broker.conf", ["maxMessageSize=65536"])

An object that exists is valid: values are checked when it is made, and every refusal is a `BadSettings` of
one sentence. What is known about each setting is in `setting_table.py`; `notes()` says which of those that
were given do nothing here. Immutable, so safe to share between threads; it may be pickled.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.errors import BadMessage, BadSettings
from penstock.format.constants import BLANK_HEADER_SIZE
from penstock.format.delay import parse_delay_levels
from penstock.format.hosts import encode_host
from penstock.format.index_layout import IndexGeometry
from penstock.format.queue_unit import UNIT_SIZE
from penstock.store.broker_names import BROKER_NAMES
from penstock.store.java_properties import parse_properties
from penstock.store.setting_spec import JAVA_INT_MAX, EffectKind, Spec
from penstock.store.setting_table import BY_NAME, SPECS, BrokerRole, Dispatch, FlushDiskType, SettingTable

__all__ = ["RECORD_SLACK", "BrokerRole", "Dispatch", "FlushDiskType", "Settings"]

RECORD_SLACK = 64 << 10
"""What a whole record may have beyond `max_message_size`, the limit of its body."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings(SettingTable):
    """RocketMQ's settings of a store, and a few of Penstock's own."""

    broker: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Settings of RocketMQ's broker that were given: known and kept for it, unused by the store."""

    given: frozenset[str] = field(default=frozenset(), compare=False)
    """The attributes that a file, a `name=value` or `with_changes` named, whatever their value."""

    def __post_init__(self) -> None:
        for spec in SPECS.values():
            value = spec.check(getattr(self, spec.attribute))
            if spec.about.effect.kind is EffectKind.REFUSED and value:
                raise spec.wrong(value, f"false: {spec.about.effect.why}")
            object.__setattr__(self, spec.attribute, value)
        units = -(-self.mapped_file_size_consume_queue // UNIT_SIZE)
        object.__setattr__(self, "mapped_file_size_consume_queue", units * UNIT_SIZE)
        object.__setattr__(self, "disk_max_used_space_ratio", min(max(self.disk_max_used_space_ratio, 10), 95))
        self._check_texts()
        self._check_index_size()

    def _check_texts(self) -> None:
        if "," in str(self.store_path_commit_log or ""):
            allowed = "one folder: a store has one commitlog folder"
            raise SPECS["store_path_commit_log"].wrong(self.store_path_commit_log, allowed)
        try:
            encode_host(self.store_host)
        except BadMessage:
            raise SPECS["broker_ip1"].wrong(self.broker_ip1, "an IPv4 or IPv6 address") from None
        hours = self.delete_when.split(";")
        if not all(re.fullmatch(r"[0-9]{1,2}", hour.strip()) and int(hour) < 24 for hour in hours):
            raise SPECS["delete_when"].wrong(self.delete_when, "hours of the day joined by ';', as in '04;16'")
        if self.dispatch is Dispatch.EXTERNAL and self.broker_role is BrokerRole.SLAVE:
            raise SPECS["dispatch"].wrong(self.dispatch, "inline with brokerRole=SLAVE")
        if not parse_delay_levels(self.message_delay_level):
            raise SPECS["message_delay_level"].wrong(self.message_delay_level, "delays such as '1s 5s 1m 2h'")

    def _check_index_size(self) -> None:
        size = self.index_geometry.file_size
        if size > JAVA_INT_MAX:
            raise BadSettings(
                f"settings maxHashSlotNum {self.max_hash_slot_num} and maxIndexNum {self.max_index_num} make "
                f"index files of {size} bytes; a file must have at most {JAVA_INT_MAX}"
            )

    # -- making ----------------------------------------------------------------------------------------------

    @classmethod
    def dev(cls, **changes: Any) -> Settings:
        """Small files, so that a store of a few messages is small: for a laptop, a tour, a test.

        A commitlog file has 1 MiB, a consume queue file 1,000 units (20,000 bytes), an index file 5,000 slots
        and 20,000 items (420,040 bytes); a body has at most 512 KiB; files are made when they are needed, not
        ahead, and not warmed up; 256 MiB free are enough, however full the disk. All else is as in production, so
        what works here works there.
        """
        small = {spec.attribute: spec.about.dev for spec in SPECS.values() if spec.about.dev is not None}
        return cls(**{**small, **changes})

    @classmethod
    def load(
        cls,
        conf_path: str | Path | None = None,
        pairs: Iterable[str] = (),
        *,
        base: Settings | None = None,
    ) -> Settings:
        """`base` (or the defaults), changed by a broker.conf, then by `name=value` texts; later ones win."""
        reader = _Reader({}, {})
        if conf_path is not None:
            reader.read_file(Path(conf_path))
        for pair in pairs:
            reader.read_pair(pair)
        start = cls() if base is None else base
        return start.with_changes(**reader.changes, broker={**start.broker, **reader.broker})

    def with_changes(self, **changes: Any) -> Settings:
        """A copy with these attributes changed; they count as given."""
        given = self.given | {attribute for attribute in changes if attribute in SPECS}
        return replace(self, **{"given": given, **changes})

    # -- asking ----------------------------------------------------------------------------------------------

    @property
    def commit_log_dir(self) -> Path:
        return self.store_path_commit_log or self.store_path_root_dir / "commitlog"

    @property
    def store_host(self) -> str:
        """The host that goes into every record: `127.0.0.1:10911`, an IPv6 address in brackets."""
        address = f"[{self.broker_ip1}]" if ":" in self.broker_ip1 else self.broker_ip1
        return f"{address}:{self.listen_port}"

    @property
    def delay_levels(self) -> tuple[int, ...]:
        """Milliseconds of each delay level; level n is at position n - 1."""
        return parse_delay_levels(self.message_delay_level)

    @property
    def index_geometry(self) -> IndexGeometry:
        return IndexGeometry(self.max_hash_slot_num, self.max_index_num)

    @property
    def max_record_size(self) -> int:
        """The largest record a put takes: by `max_message_size`, and so that it fits into one file."""
        return min(self.max_message_size + RECORD_SLACK, self.mapped_file_size_commit_log - BLANK_HEADER_SIZE)

    @property
    def transient_pool_active(self) -> bool:
        """RocketMQ's rule: the pool works with asynchronous flush on a master only."""
        asynchronous = self.flush_disk_type is FlushDiskType.ASYNC_FLUSH
        return self.transient_store_pool_enable and asynchronous and self.broker_role is not BrokerRole.SLAVE

    @property
    def puts_answer_at_once(self) -> bool:
        """Whether a put waits neither for the disk nor for a slave."""
        return self.flush_disk_type is FlushDiskType.ASYNC_FLUSH and self.broker_role is not BrokerRole.SYNC_MASTER

    def changed(self) -> list[Spec]:
        """The settings whose value is not the default, in the table's order."""
        return [spec for spec in SPECS.values() if getattr(self, spec.attribute) != spec.check(spec.default)]

    def notes(self) -> list[str]:
        """A sentence for each setting that was given, or is not the default, and does not do what it says."""
        different = {spec.attribute for spec in self.changed()}
        asked = [spec for spec in SPECS.values() if spec.attribute in self.given | different]
        notes = [note for spec in asked if (note := self._note(spec))]
        if self.transient_store_pool_enable and not self.transient_pool_active:
            notes.append(
                "transientStorePoolEnable=true has no effect with "
                f"flushDiskType={self.flush_disk_type} and brokerRole={self.broker_role}."
            )
        if self.max_record_size < self.max_message_size + RECORD_SLACK:
            notes.append(
                f"maxMessageSize={self.max_message_size} is cut: records have at most {self.max_record_size} "
                f"bytes, because each must fit into a commitlog file of {self.mapped_file_size_commit_log}."
            )
        return notes

    def _note(self, spec: Spec) -> str:
        effect = spec.about.effect
        given = f"{spec.name}={spec.show(getattr(self, spec.attribute))}"
        if effect.kind is EffectKind.NO_EFFECT:
            return f"{given} has no effect: {effect.why}."
        return ""

    def __repr__(self) -> str:
        values = (f"{spec.attribute}={getattr(self, spec.attribute)!r}" for spec in self.changed())
        return f"Settings({', '.join(values)})"


@dataclass(frozen=True, slots=True)
class _Reader:
    """Collects what texts ask for: changes of attributes, and settings of the broker."""

    changes: dict[str, Any]
    broker: dict[str, str]

    def read_file(self, path: Path) -> None:
        try:
            entries = parse_properties(path.read_bytes())
        except OSError as error:
            raise BadSettings(
                f"cannot read the settings: {error.strerror}; check the path and who may read it", path=path
            ) from error
        except ValueError as error:
            raise BadSettings(str(error), path=path) from error
        for entry in entries:
            try:
                self.set(entry.name, entry.value)
            except BadSettings as error:
                raise BadSettings(f"line {entry.line}: {error}", path=path) from error

    def read_pair(self, pair: str) -> None:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise BadSettings(f"'{pair}' is not a setting; write name=value")
        self.set(name.strip(), text.strip())

    def set(self, name: str, text: str) -> None:
        if name in BROKER_NAMES:
            self.broker[name] = text.strip()
        elif name in BY_NAME:
            spec = BY_NAME[name]
            self.changes[spec.attribute] = spec.check(spec.parse(text))
        else:
            raise BadSettings(f"unknown setting '{name}'{_nearest(name)}")


def _nearest(name: str) -> str:
    known = {each.lower(): each for each in sorted({*BY_NAME, *BROKER_NAMES})}
    close = difflib.get_close_matches(name.lower(), known, n=1)
    return f"; did you mean '{known[close[0]]}'?" if close else "; no known setting has a name like it"
