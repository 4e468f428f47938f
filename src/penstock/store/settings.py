"""The store's settings: one frozen, typed object with RocketMQ 4.9.8's names and defaults.

    Settings()                                          RocketMQ's defaults
    Settings(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    Settings.dev()                                      small files, for a laptop or a test
    Settings.load("broker.conf", ["maxMessageSize=65536"])

Attributes are RocketMQ's names in snake_case, with misspelt names corrected (`warmMapedFileEnable` is
`warm_mapped_file_enable`). Values are checked when an object is created; an invalid value raises `BadSettings` with one
sentence. `notes()` warns of given settings that have no effect or a different one. Objects are immutable and picklable,
and may be shared between threads.

To add a setting, add its attribute here, use it in the store, and update the reference page:
`python -m penstock.config.reference_pages docs/reference/settings.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from penstock.config.ignored_settings import ignored_note
from penstock.config.java_properties import format_property
from penstock.config.setting_parser import INT_MAX, LONG_MAX, Origin, Section, Setting, SettingTable
from penstock.errors import BadMessage, BadSettings
from penstock.format.constants import BLANK_HEADER_SIZE, MIN_RECORD_SIZE
from penstock.format.delay import parse_delay_levels
from penstock.format.hosts import encode_host
from penstock.format.index_layout import IndexGeometry
from penstock.format.queue_unit import UNIT_SIZE


class FlushDiskType(StrEnum):
    """Whether a put waits until its message is on disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class Dispatch(StrEnum):
    """Who builds queues and index from the log: the store itself, or an external dispatch job."""

    INLINE = "inline"
    EXTERNAL = "external"


class BrokerRole(StrEnum):
    """The role of a broker in replication."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


FILES = Section("Paths and file sizes")
HOST = Section("This host")
PUT = Section("Putting")
FLUSH = Section("Flushing")
BUFFERS = Section("New files and write buffers")
GET = Section("Getting and querying")
DELAY = Section("Delayed messages")
DELETE = Section("Deleting old files")
DISK = Section("Deleting old files", Origin.SYSTEM_PROPERTY)
REPLICATE = Section("Replication")
DLEDGER = Section("DLedger and light queues")
OURS = Section("Penstock's own", Origin.PENSTOCK)

RECORD_SLACK: Final = 64 << 10
"""Bytes by which a whole record may exceed `max_message_size`, which limits the body."""

_ALWAYS_WRITTEN: Final = (
    "store_path_root_dir",
    "store_path_commit_log",
    "mapped_file_size_commit_log",
    "mapped_file_size_consume_queue",
    "max_hash_slot_num",
    "max_index_num",
)
"""Settings that `to_broker_conf` always writes.

The files do not record their sizes, and RocketMQ 4.9.2 expects the commitlog in the user's home by default.
"""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """RocketMQ's settings of a store, and a few of Penstock's own."""

    store_path_root_dir: Annotated[Path, FILES("folder of the store")] = Path("~/store")
    store_path_commit_log: Annotated[Path | None, FILES("folder of the log; unset: `commitlog` in the root")] = None
    mapped_file_size_commit_log: Annotated[
        int,
        FILES("bytes of a commitlog file", aliases=("mapedFileSizeCommitLog",), low=100, dev=1 << 20),
    ] = 1 << 30
    mapped_file_size_consume_queue: Annotated[
        int,
        FILES(
            "bytes of a consume queue file, rounded up to a multiple of 20",
            aliases=("mapedFileSizeConsumeQueue",),
            low=20,
            high=INT_MAX // 20 * 20,
            dev=1000 * 20,
        ),
    ] = 300_000 * 20
    mapped_file_size_consume_queue_ext: Annotated[
        int, FILES("bytes of a consume queue extension file; existing ones are read, none is written", low=1)
    ] = 48 << 20
    max_hash_slot_num: Annotated[int, FILES("hash slots of an index file", low=1, dev=5000)] = 5_000_000
    max_index_num: Annotated[int, FILES("items of an index file", low=2, dev=20_000)] = 20_000_000

    broker_ip1: Annotated[str, HOST("address in each record's store host", name="brokerIP1")] = "127.0.0.1"
    listen_port: Annotated[int, HOST("port in each record's store host", high=65535)] = 10911

    max_message_size: Annotated[
        int, PUT("bytes of the largest body; the whole record may have 64 KiB more", low=1, dev=512 << 10)
    ] = 4 << 20
    enabled_append_prop_crc: Annotated[
        bool,
        PUT(
            "each record ends with its own CRC as a property, as in RocketMQ 5; it covers topic and properties, too",
            name="enabledAppendPropCRC",
        ),
    ] = False
    os_page_cache_busy_time_out_mills: Annotated[
        int, PUT("a put answers OS_PAGECACHE_BUSY while another holds the put lock for longer, ms")
    ] = 1000

    flush_disk_type: Annotated[FlushDiskType, FLUSH("whether a put waits for the disk")] = FlushDiskType.ASYNC_FLUSH
    sync_flush_timeout: Annotated[int, FLUSH("longest wait of a put for the disk, ms", low=1)] = 5000
    flush_interval_commit_log: Annotated[int, FLUSH("period of the asynchronous flush, ms", low=1)] = 500
    flush_commit_log_timed: Annotated[bool, FLUSH("true: flush only at that period; false: puts may flush earlier")] = (
        True
    )
    flush_commit_log_least_pages: Annotated[int, FLUSH("flush only with at least this many new pages")] = 4
    flush_commit_log_thorough_interval: Annotated[int, FLUSH("after this time flush any number of pages, ms")] = 10_000
    flush_interval_consume_queue: Annotated[int, FLUSH("period of the consume queues' flush, ms", low=1)] = 1000
    flush_consume_queue_least_pages: Annotated[int, FLUSH("flush a queue only with at least this many new pages")] = 2
    flush_consume_queue_thorough_interval: Annotated[
        int, FLUSH("after this time flush any number of pages and write the checkpoint, ms")
    ] = 60_000

    transient_store_pool_enable: Annotated[
        bool,
        BUFFERS("append to locked memory and commit to the file later; with ASYNC_FLUSH on a master only"),
    ] = False
    transient_store_pool_size: Annotated[int, BUFFERS("buffers in the pool, of a commitlog file's size", low=1)] = 5
    fast_fail_if_no_buffer_in_store_pool: Annotated[
        bool, BUFFERS("refuse a new file while the pool has no free buffer")
    ] = False
    commit_interval_commit_log: Annotated[int, BUFFERS("period of the commit from pool to file, ms", low=1)] = 200
    commit_commit_log_least_pages: Annotated[int, BUFFERS("commit only with at least this many new pages")] = 4
    commit_commit_log_thorough_interval: Annotated[int, BUFFERS("after this time commit any number of pages, ms")] = 200
    warm_mapped_file_enable: Annotated[
        bool,
        BUFFERS(
            "touch every page of a new commitlog file",
            name="warmMapedFileEnable",
            aliases=("warmMappedFileEnable",),
        ),
    ] = False
    flush_least_pages_when_warm_mapped_file: Annotated[
        int,
        BUFFERS(
            "flush whenever this many pages were touched (SYNC_FLUSH)",
            name="flushLeastPagesWhenWarmMapedFile",
            aliases=("flushLeastPagesWhenWarmMappedFile",),
            low=1,
        ),
    ] = 4096

    max_transfer_bytes_on_message_in_memory: Annotated[int, GET("bytes of one get, recent messages", low=1)] = 256 << 10
    max_transfer_count_on_message_in_memory: Annotated[int, GET("messages of one get, recent ones", low=1)] = 32
    max_transfer_bytes_on_message_in_disk: Annotated[int, GET("bytes of one get, old messages", low=1)] = 64 << 10
    max_transfer_count_on_message_in_disk: Annotated[int, GET("messages of one get, old ones", low=1)] = 8
    access_message_in_memory_max_ratio: Annotated[
        int, GET("share of the machine's memory that counts as recent, percent", high=100)
    ] = 40
    message_index_enable: Annotated[bool, GET("build the index for queries by key")] = True
    max_msgs_num_batch: Annotated[int, GET("maximum messages of a query by key", low=1)] = 64
    default_query_max_num: Annotated[int, GET("default messages of a query by key", low=1)] = 32
    check_crc_on_recover: Annotated[bool, GET("check bodies during recovery", name="checkCRCOnRecover")] = True

    message_delay_level: Annotated[str, DELAY("the delay of each level, in s, m, h or d")] = (
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    )
    flush_delay_offset_interval: Annotated[
        int, DELAY("period of writing delayOffset.json, ms; by the broker", low=1)
    ] = 10_000

    file_reserved_time: Annotated[int, DELETE("age at which a file may be deleted, hours")] = 72
    delete_when: Annotated[str, DELETE("hours of the day when old files are deleted, joined by `;`")] = "04"
    clean_resource_interval: Annotated[int, DELETE("period of the cleaner, ms", low=1)] = 10_000
    delete_commit_log_files_interval: Annotated[int, DELETE("pause between two commitlog files, ms")] = 100
    delete_consume_queue_files_interval: Annotated[int, DELETE("pause between two queue files, ms")] = 100
    destroy_mapped_file_interval_forcibly: Annotated[
        int,
        DELETE(
            "a file in use is deleted after this time, ms",
            name="destroyMapedFileIntervalForcibly",
            aliases=("destroyMappedFileIntervalForcibly",),
        ),
    ] = 120_000
    redelete_hanged_file_interval: Annotated[int, DELETE("pause before the first file is tried again, ms")] = 120_000
    disk_max_used_space_ratio: Annotated[
        int, DELETE("percent of the disk above which old files are deleted at once, kept within 10 to 95", low=-(2**31))
    ] = 75
    clean_file_forcibly_enable: Annotated[bool, DELETE("delete files that are not old when the disk is full")] = True
    disk_space_warning_level_ratio: Annotated[
        float,
        DISK(
            "share of the disk above which puts are refused",
            name="rocketmq.broker.diskSpaceWarningLevelRatio",
            aliases=("diskSpaceWarningLevelRatio",),
            high=1,
        ),
    ] = 0.90
    disk_space_clean_forcibly_ratio: Annotated[
        float,
        DISK(
            "share of the disk above which files that are not old are deleted too",
            name="rocketmq.broker.diskSpaceCleanForciblyRatio",
            aliases=("diskSpaceCleanForciblyRatio",),
            high=1,
        ),
    ] = 0.85

    broker_role: Annotated[BrokerRole, REPLICATE("ASYNC_MASTER, SYNC_MASTER or SLAVE")] = BrokerRole.ASYNC_MASTER
    ha_listen_port: Annotated[
        int,
        REPLICATE(
            "port a master listens on for its slaves; an ASYNC_MASTER does if this or brokerIP2 is given", high=65535
        ),
    ] = 10912
    ha_master_address: Annotated[
        str | None, REPLICATE("where a slave finds its master's log, `host:port`; unset: ask the name servers")
    ] = None
    ha_send_heartbeat_interval: Annotated[int, REPLICATE("period of heartbeats, ms", low=1)] = 5000
    ha_housekeeping_interval: Annotated[int, REPLICATE("silence after which a connection ends, ms", low=1)] = 20_000
    ha_transfer_batch_size: Annotated[int, REPLICATE("bytes of one frame", low=1)] = 32 << 10
    ha_slave_fallbehind_max: Annotated[int, REPLICATE("bytes behind at which a slave is not available")] = 256 << 20
    slave_timeout: Annotated[int, REPLICATE("longest wait of a put for a slave, ms", low=1)] = 3000
    offset_check_in_slave: Annotated[bool, REPLICATE("a slave also reports offsets outside the queue")] = False

    enable_dledger_commit_log: Annotated[
        bool,
        DLEDGER(
            "keep the log in DLedger",
            refused="there is no DLedger commit log",
            name="enableDLegerCommitLog",
            aliases=("enableDLedgerCommitLog",),
        ),
    ] = False
    enable_lmq: Annotated[bool, DLEDGER("light message queues", refused="there are no light queues")] = False
    enable_multi_dispatch: Annotated[
        bool, DLEDGER("one record in several queues", refused="there are no light queues")
    ] = False

    pre_allocate_files: Annotated[
        bool,
        OURS("create the next two commitlog files ahead of need; false: a file when it is needed", dev=False),
    ] = True
    grow_log_files: Annotated[
        bool,
        OURS(
            "allocate the disk blocks of a commitlog file in steps of 1 to 32 MiB while it fills, not all at once; its "
            "size stays mappedFileSizeCommitLog. No effect with transientStorePoolEnable or warmMapedFileEnable. "
            "`penstock serve` sets it if there is no configuration file and mappedFileSizeCommitLog is not given"
        ),
    ] = False
    verify_crc_on_read: Annotated[bool, OURS("check the body of each message that is read")] = True
    min_in_sync_replicas: Annotated[
        int,
        OURS(
            "with a sync set in force, a master refuses messages while the set, itself included, has fewer replicas; "
            "RocketMQ 5's name",
            low=1,
        ),
    ] = 1
    quarantine_max_bytes: Annotated[
        int,
        OURS(
            "limit of the folder `penstock/quarantine`, bytes; before exceeding it, a start or a repair asks, or "
            "refuses to continue",
            high=LONG_MAX,
            dev=256 << 20,
        ),
    ] = 4 << 30
    disk_enough_free_bytes: Annotated[
        int,
        OURS(
            "with this many bytes free no put is refused, and with twice as many only old files are deleted, "
            "whatever the ratios say; 0: only the ratios decide, as in RocketMQ",
            high=LONG_MAX,
            dev=256 << 20,
        ),
    ] = 16 << 30
    disk_min_free_bytes: Annotated[
        int,
        OURS(
            "with fewer bytes free puts are refused, and with fewer than twice as many files are deleted that are "
            "not old, whatever the ratios say; 0: no such limit",
            high=LONG_MAX,
        ),
    ] = 0
    dispatch: Annotated[
        Dispatch,
        OURS(
            "what builds queues and index from the log: the store itself, or with `external` the job "
            "`penstock pipeline dispatch`, while the store only appends"
        ),
    ] = Dispatch.INLINE

    broker: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Given settings that the store does not use, by RocketMQ's name: the broker's settings, and ignored ones."""

    given: frozenset[str] = field(default=frozenset(), compare=False)
    """Attributes that a file, a `name=value` text or `with_changes` has set, even if to their default."""

    def __post_init__(self) -> None:
        TABLE.check(self)
        units = -(-self.mapped_file_size_consume_queue // UNIT_SIZE)
        object.__setattr__(self, "mapped_file_size_consume_queue", units * UNIT_SIZE)
        object.__setattr__(self, "disk_max_used_space_ratio", min(max(self.disk_max_used_space_ratio, 10), 95))
        self._check_texts()
        self._check_index_size()

    def _check_texts(self) -> None:
        if "," in str(self.store_path_commit_log or ""):
            allowed = "it must be one folder: a store has one commitlog folder"
            raise TABLE["store_path_commit_log"].wrong(self.store_path_commit_log, allowed)
        try:
            encode_host(self.store_host)
        except BadMessage:
            raise TABLE["broker_ip1"].wrong(self.broker_ip1, "it must be an IPv4 or IPv6 address") from None
        hours = self.delete_when.split(";")
        if not all(re.fullmatch(r"[0-9]{1,2}", hour.strip()) and int(hour) < 24 for hour in hours):
            raise TABLE["delete_when"].wrong(
                self.delete_when, "it must be hours of the day joined by ';', as in '04;16'"
            )
        if self.dispatch is Dispatch.EXTERNAL and self.broker_role is BrokerRole.SLAVE:
            raise TABLE["dispatch"].wrong(self.dispatch, "it must be inline with brokerRole=SLAVE")
        if not parse_delay_levels(self.message_delay_level):
            raise TABLE["message_delay_level"].wrong(
                self.message_delay_level, "it must be delays such as '1s 5s 1m 2h'"
            )

    def _check_index_size(self) -> None:
        size = self.index_geometry.file_size
        if size > INT_MAX:
            raise BadSettings(
                f"settings maxHashSlotNum {self.max_hash_slot_num} and maxIndexNum {self.max_index_num} make "
                f"index files of {size} bytes; a file must have at most {INT_MAX}"
            )

    # -- construction ----------------------------------------------------------------------------------------------

    @classmethod
    def dev(cls, **changes: Any) -> Settings:
        """Returns settings with small files, for a laptop, a demo or a test. `changes` override them.

        A commitlog file has 1 MiB, a consume queue file 1,000 units (20,000 bytes), an index file 5,000 slots and
        20,000 items (420,040 bytes). A body has at most 512 KiB. Log files are created when they are needed, not ahead.
        The quarantine holds at most 256 MiB. With 256 MiB free, the disk is never too full for puts. All other settings
        have their defaults.
        """
        small = {setting.attribute: setting.dev for setting in TABLE if setting.dev is not None}
        return cls(**{**small, **changes})

    @classmethod
    def load(
        cls,
        conf_path: str | Path | None = None,
        pairs: Iterable[str] = (),
        *,
        base: Settings | None = None,
    ) -> Settings:
        """Returns `base` (or the defaults), changed by a broker.conf, then by `name=value` texts. The last one wins."""
        values, texts = TABLE.read(conf_path, pairs)
        start = cls() if base is None else base
        return start.with_changes(**values, broker={**start.broker, **texts})

    def with_live_changes(self, **changes: Any) -> Settings:
        """Like `with_changes`, for an open store. Raises BadSettings, also for an attribute that is not in LIVE."""
        for attribute in changes:
            if attribute not in LIVE:
                raise BadSettings(f"{TABLE[attribute].name} cannot be changed while the store is open; open it again")
        return self.with_changes(**changes)

    def with_changes(self, **changes: Any) -> Settings:
        """Returns a copy with these attributes changed. The changed attributes count as given."""
        given = self.given | {attribute for attribute in changes if attribute in TABLE}
        return replace(self, **{"given": given, **changes})

    # -- derived values ----------------------------------------------------------------------------------------------

    @property
    def commit_log_dir(self) -> Path:
        return self.store_path_commit_log or self.store_path_root_dir / "commitlog"

    @property
    def store_host(self) -> str:
        """The store host in every record, such as `127.0.0.1:10911`. An IPv6 address has brackets."""
        address = f"[{self.broker_ip1}]" if ":" in self.broker_ip1 else self.broker_ip1
        return f"{address}:{self.listen_port}"

    @property
    def delay_levels(self) -> tuple[int, ...]:
        """The delay of each level in ms. Level n is at position n - 1."""
        return parse_delay_levels(self.message_delay_level)

    @property
    def index_geometry(self) -> IndexGeometry:
        return IndexGeometry(self.max_hash_slot_num, self.max_index_num)

    @property
    def max_record_size(self) -> int:
        """Bytes of the largest record that a put accepts. `max_message_size` and the log's file size limit it."""
        return min(self.max_message_size + RECORD_SLACK, self.mapped_file_size_commit_log - BLANK_HEADER_SIZE)

    @property
    def transient_pool_active(self) -> bool:
        """Whether the transient pool is used. As in RocketMQ, only a master with ASYNC_FLUSH uses it."""
        asynchronous = self.flush_disk_type is FlushDiskType.ASYNC_FLUSH
        return self.transient_store_pool_enable and asynchronous and self.broker_role is not BrokerRole.SLAVE

    @property
    def log_grows(self) -> bool:
        """Whether log files get their disk blocks in steps. The pool and the warm-up store into whole files."""
        return self.grow_log_files and not (self.transient_store_pool_enable or self.warm_mapped_file_enable)

    def changed(self) -> list[Setting]:
        """Returns the settings whose value is not the default, in the order in which they are declared."""
        return [each for each in TABLE if getattr(self, each.attribute) != each.check(each.default)]

    def notes(self) -> list[str]:
        """Returns warnings: settings that have no effect or a reduced effect, and one list of all ignored names."""
        notes = ignored_note(self.broker)
        if self.transient_store_pool_enable and not self.transient_pool_active:
            notes.append(
                "transientStorePoolEnable=true has no effect with "
                f"flushDiskType={self.flush_disk_type} and brokerRole={self.broker_role}."
            )
        if self.max_record_size < MIN_RECORD_SIZE + 1 + self.max_message_size:  # 1: the shortest topic
            notes.append(
                f"maxMessageSize={self.max_message_size} is cut: records have at most {self.max_record_size} "
                f"bytes, because each must fit into a commitlog file of {self.mapped_file_size_commit_log}."
            )
        return notes

    def __repr__(self) -> str:
        values = (f"{each.attribute}={getattr(self, each.attribute)!r}" for each in self.changed())
        return f"Settings({', '.join(values)})"


LIVE: Final = ("delete_when", "disk_max_used_space_ratio", "file_reserved_time", "max_message_size")
"""The attributes that may be changed while a store is open."""

TABLE: Final = SettingTable(Settings, shares="penstock.broker.settings:TABLE")


def to_broker_conf(settings: Settings) -> str:
    """Returns the broker.conf with which an Apache RocketMQ 4.9 broker can open the store. Paths become absolute.

    The text has paths, file sizes and index geometry first, then every setting that differs from RocketMQ's default.
    Penstock's own settings are omitted. Settings that RocketMQ takes as Java system properties become comments.
    """
    settings = settings.with_changes(
        store_path_root_dir=settings.store_path_root_dir.absolute(),
        store_path_commit_log=settings.commit_log_dir.absolute(),
    )
    different = [each for each in settings.changed() if each.attribute not in _ALWAYS_WRITTEN]
    lines = ["# The files of this store: keep these as they are."]
    lines += [_line(settings, TABLE[attribute]) for attribute in _ALWAYS_WRITTEN]
    rest = [_line(settings, each) for each in different if each.origin is Origin.BROKER_CONF]
    rest += [format_property(name, text) for name, text in settings.broker.items() if _is_rocketmqs(name)]
    if rest:
        lines += ["# Different from RocketMQ's defaults.", *rest]
    for each in different:
        if each.origin is Origin.SYSTEM_PROPERTY:
            lines.append(f"# Start Java with -D{each.name}={each.show(getattr(settings, each.attribute))}")
    return "\n".join(lines) + "\n"


def _line(settings: Settings, setting: Setting) -> str:
    return format_property(setting.name, setting.show(getattr(settings, setting.attribute)))


def _is_rocketmqs(name: str) -> bool:
    setting = None if TABLE.other is None else TABLE.other.by_name.get(name)
    return setting is None or setting.origin is not Origin.PENSTOCK
