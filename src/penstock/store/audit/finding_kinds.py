"""Every kind of finding: name, severity, meaning, remedy. `docs/reference/verify.md` has the same table."""

from __future__ import annotations

from typing import Final

from penstock.store.audit.findings import FindingKind, Severity

_RESTORE = "restore the file from a backup or a replica; without one, `penstock store repair` makes the rest usable"
_REPAIR = "`penstock store repair` saves these bytes and covers them with a valid record; or restore a backup"
_REBUILD = "`penstock store rebuild` rebuilds queues and index from the log"
_START = "a start fixes it: `penstock store recover`"
_CUT = "a start truncates it and saves the bytes: `penstock store recover`"
_MOVE = "move it elsewhere; the store does not start with it"
_SIZES = "give the size that the files were created with (--set), or restore the file from a backup"
_NOTHING = "nothing to do"
_COPY = "replace it with a good copy, or with its backup `.bak`"

KINDS: Final[dict[str, FindingKind]] = {}


def _kind(severity: Severity, name: str, meaning: str, remedy: str) -> FindingKind:
    kind = FindingKind(name, severity, meaning, remedy)
    KINDS[name] = kind
    return kind


def _error(name: str, meaning: str, remedy: str) -> FindingKind:
    return _kind("error", name, meaning, remedy)


def _note(name: str, meaning: str, remedy: str = _NOTHING) -> FindingKind:
    return _kind("note", name, meaning, remedy)


# -- files ---------------------------------------------------------------------------------------------------------

FOREIGN_FILE = _error("foreign-file", "a file or folder is where only data files may be", _MOVE)
LOG_FILE_MISSING = _error("log-file-missing", "a commitlog file between two others is missing", _RESTORE)
LOG_FILE_EMPTY = _error("log-file-empty", "a commitlog file is empty", _RESTORE)
LOG_FILE_SIZE = _error("log-file-size", "a commitlog file differs in size from the others", _SIZES)
LOG_FILE_NAME = _error("log-file-name", "a commitlog file's name is not a multiple of the file size", _MOVE)
QUEUE_FILE_MISSING = _error("queue-file-missing", "a consume queue file between two others is missing", _REBUILD)
QUEUE_FILE_EMPTY = _error("queue-file-empty", "a consume queue file is empty", _REBUILD)
QUEUE_FILE_SIZE = _error("queue-file-size", "a consume queue file differs in size from the others", _REBUILD)
QUEUE_FILE_NAME = _error("queue-file-name", "a consume queue file's name is not a multiple of the file size", _MOVE)
INDEX_FILE_EMPTY = _error("index-file-empty", "an index file is empty", _REBUILD)
INDEX_FILE_SIZE = _error(
    "index-file-size",
    "an index file's size does not fit maxHashSlotNum and maxIndexNum; its content was not checked",
    "give the values it was created with (--set maxHashSlotNum=... --set maxIndexNum=...), or rebuild the index",
)

# -- log -----------------------------------------------------------------------------------------------------------

RECORD_SIZE = _error("record-size", "a record's size does not match its parts, or exceeds the file", _REPAIR)
RECORD_MAGIC = _error("record-magic", "no record magic where a record must begin", _REPAIR)
RECORD_CRC = _error("record-crc", "a body does not match the CRC in its record, or a record its own CRC", _REPAIR)
RECORD_POSITION = _error("record-position", "a record's physical offset is not its position", _REPAIR)
RECORD_LENGTHS = _error(
    "record-lengths", "the lengths of body, topic and properties do not add up to the record's size", _REPAIR
)
LOG_HOLE = _error("log-hole", "zeros in the log where records must be, with records after them", _REPAIR)
FILLER_IN_MIDDLE = _error("filler-in-middle", "a filler does not end at the end of its file, or hides records", _REPAIR)
TORN_TAIL = _error("torn-tail", "invalid bytes after the last record, left by a crash", _CUT)
STALE_BYTES = _error("stale-bytes", "invalid bytes after the last record, although the store was closed cleanly", _CUT)
RECORD_TOPIC = _error(
    "record-topic",
    "a record's topic is not a valid queue name",
    "its messages have no queue; read them with `penstock store log`",
)
RECORD_QUEUE = _error(
    "record-queue",
    "a record's queue id or queue offset is negative, or its queue offset is impossibly large",
    "its messages have no queue; read them with `penstock store log`",
)
RECORD_TIME = _error(
    "record-time",
    "a record's store time is before 2010 or more than a day from now",
    "check the clock of the broker's host; searches by time do not find these messages",
)
TIME_STEP_BACK = _note(
    "time-step-back",
    "a record's store time is more than a minute before the previous record's",
    "check the clock of the broker's host; searches by time are inexact around here",
)
REPAIRED = _note("repaired", "a damaged range that a repair covered with a record")
NOT_CLOSED = _note("not-closed", "the store was not closed cleanly", "the next start recovers it")
UNSETTLED = _note(
    "unsettled",
    "the store is in use, and its owner had not dispatched its newest records yet",
    "run the check again, or when the store is closed",
)

# -- queues --------------------------------------------------------------------------------------------------------

UNIT_MISSING = _error("unit-missing", "a record has no unit in its queue", _REBUILD)
UNIT_GAP = _error("unit-gap", "zeros between the units of a queue; readers stop there", _REBUILD)
UNIT_GARBAGE = _error("unit-garbage", "20 bytes of a queue are not a unit", _REBUILD)
UNIT_OFFSET = _error("unit-offset", "a unit points to a position where no record begins", _REBUILD)
UNIT_SIZE = _error("unit-size", "a unit's size is not its record's size", _REBUILD)
UNIT_TAGS = _error("unit-tags", "a unit's tags code is not its record's tags code", _REBUILD)
UNIT_TOPIC = _error("unit-topic", "a unit points to a record of another topic", _REBUILD)
UNIT_QUEUE = _error("unit-queue", "a unit points to a record of another queue", _REBUILD)
UNIT_REPEATED = _error("unit-repeated", "a unit points to the record of another unit", _REBUILD)
UNIT_TRANSACTION = _error("unit-transaction", "a unit points to a prepared or rolled-back record", _REBUILD)
UNIT_PAST_LOG = _error("unit-past-log", "a unit points past the end of the log", _REBUILD)
UNIT_BLANK = _error("unit-blank", "a pre-blank unit follows the queue's last record", _REBUILD)
QUEUE_MINIMUM = _error("queue-minimum", "a queue begins after its oldest record in the log", _REBUILD)
QUEUE_OFFSET_GAP = _error(
    "queue-offset-gap",
    "no record has these queue offsets, although the log is undamaged in between",
    "the messages are not in this store; compare it with a replica",
)
QUEUE_OFFSET_REPEATED = _error(
    "queue-offset-repeated",
    "two records have the same topic, queue and queue offset; the queue can point to only one",
    "read the others by key, by id or with `penstock store log`",
)
QUEUE_RESTARTED = _note(
    "queue-restarted",
    "a queue restarts at 0: its topic was deleted and created again; its older records have no units",
)
TOPIC_DELETED = _note("topic-deleted", "records of a deleted topic; they have no queue")
UNITS_BELOW_MINIMUM = _note("units-below-minimum", "units point to records that retention deleted")
QUEUE_GONE = _note("queue-gone", "a queue has no records left in the log")
UNIT_EXTENSION = _note("unit-extension", "units point to a missing extension file; their tags could not be checked")

# -- index ---------------------------------------------------------------------------------------------------------

INDEX_COUNT = _error("index-count", "an index file's header counts more items than fit", _REBUILD)
INDEX_SLOT_COUNT = _error("index-slot-count", "an index file's header has a wrong count of used slots", _REBUILD)
INDEX_TIMES = _error(
    "index-times", "the times in an index file's header are not those of its first and last record", _REBUILD
)
INDEX_OFFSETS = _error(
    "index-offsets", "the offsets in an index file's header are not those of its first and last item", _REBUILD
)
INDEX_CHAIN = _error("index-chain", "an item does not point to the previous item of its slot", _REBUILD)
INDEX_CYCLE = _error("index-cycle", "an item points to itself or to a later one", _REBUILD)
INDEX_SLOT = _error("index-slot", "a slot does not point to its newest item", _REBUILD)
INDEX_DANGLING = _error("index-dangling", "an item points to a position without a record that has its key", _REBUILD)
INDEX_PAST_LOG = _error("index-past-log", "an item points past the end of the log", _REBUILD)
INDEX_ITEM_TIME = _error("index-item-time", "an item's time does not match its record's store time", _REBUILD)
INDEX_KEY_MISSING = _error("index-key-missing", "keys of records are not in the index", _REBUILD)
INDEX_REPEATED = _note(
    "index-repeated", "keys are in the index more than once, as RocketMQ leaves them after a restart"
)
INDEX_BELOW_MINIMUM = _note("index-below-minimum", "items point to records that retention deleted")
INDEX_OLD_COUNT = _note("index-old-count", "a header counts every key as a slot, as RocketMQ did up to 4.7.0")

# -- checkpoint and config -----------------------------------------------------------------------------------------

CHECKPOINT_SIZE = _error("checkpoint-size", "the checkpoint does not have 4096 bytes", _START)
CHECKPOINT_AHEAD = _error(
    "checkpoint-ahead",
    "the checkpoint is newer than the newest record",
    "if the store crashes now, recovery may begin too late; a start fixes it: `penstock store recover`",
)
CHECKPOINT_MISSING = _note(
    "checkpoint-missing", "the checkpoint does not exist", "after a crash, a start scans the whole log"
)
CONFIG_UNREADABLE = _error("config-unreadable", "a config file is empty or cannot be parsed", _COPY)
CONFIG_MISSING = _note("config-missing", "a config file does not exist", "it is created when needed")
CONSUMER_OFFSET_PAST_END = _error(
    "consumer-offset-past-end",
    "a group's offset is past the end of its queue",
    "reset the group's offset; until the queue reaches it, the group gets nothing or starts over",
)
CONSUMER_OFFSET_BELOW_MINIMUM = _note(
    "consumer-offset-below-minimum",
    "retention deleted messages that a group had not consumed",
    "it continues at the minimum; the messages in between are lost to it",
)
CONSUMER_OFFSET_QUEUE_GONE = _note("consumer-offset-queue-gone", "a group has an offset in a queue without files")
DELAY_OFFSET_PAST_END = _error(
    "delay-offset-past-end",
    "a delay level's offset is past the end of its queue",
    "set it to the queue's end; until the queue reaches it, delayed messages are not delivered",
)
DELAY_OFFSET_BELOW_MINIMUM = _note(
    "delay-offset-below-minimum",
    "delayed messages were deleted before they were delivered",
    "delivery continues at the minimum",
)
DELAY_LEVEL_UNKNOWN = _error(
    "delay-level-unknown",
    "an offset for a delay level that messageDelayLevel does not define",
    "correct messageDelayLevel",
)
UNKNOWN_TOPIC = _error(
    "unknown-topic",
    "a config file names a topic that is neither in topics.json nor in the store",
    "remove the entry, or restore topics.json",
)
TOPIC_NOT_CONFIGURED = _note("topic-not-configured", "a topic has messages but is not in topics.json")
