"""The numbers and names that readers and writers of RocketMQ's formats share. RocketMQ's integers are big-endian.

`Int32` and `Int64` are Java's int and long, for struct fields that Java must be able to read.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


# CommitLog record
MESSAGE_MAGIC: Final = 0xDAA320A7
MESSAGE_MAGIC_V2: Final = 0xDAA320AB  # 5.x: the topic's length has two bytes; read, never written
BLANK_MAGIC: Final = 0xCBD43194
MIN_RECORD_SIZE: Final = 91  # the fixed fields with two IPv4 hosts
MIN_RECORD_SIZE_V2: Final = 92
BLANK_HEADER_SIZE: Final = 8  # size and magic of a filler (RocketMQ's blank); its other bytes are not interpreted
MAX_TOPIC_LENGTH: Final = 127
MAX_TOPIC_LENGTH_V2: Final = 255  # the limit of 5.x, and of the name of a queue's folder
MAX_PROPERTIES_LENGTH: Final = 32_767
RECORD_CRC: Final = b"__CRC32#\x010000000000\x02"  # 5.x: the last property has the record's CRC, its lowest digit first
SECTOR_SIZE: Final = 512  # a disk writes a sector atomically
MAX_ZEROS: Final = SECTOR_SIZE - 1  # NUL in a row that properties must not have; the byte before them may be 0, too


# System topics
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DAMAGED_TOPIC: Final = "PENSTOCK_DAMAGED"  # topic of the records that a repair writes over damage
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"


# Properties: `name 0x01 value`, joined with 0x02
NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
KEY_SEPARATOR: Final = " "
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
CLUSTER: Final = "CLUSTER"
CRC32: Final = "__CRC32#"
