"""A message on its way into the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class Message(msgspec.Struct, frozen=True, gc=False):
    """What a producer hands over; everything but topic and body has a default.

    `keys`, `tags`, `delay_level` and `wait` are the properties KEYS, TAGS, DELAY and WAIT under friendlier names, and
    win over entries of `properties` with those names. `keys` may be one string with spaces. `wait=False` asks not to
    wait for the disk under SYNC_FLUSH. A `born_timestamp` of 0 means now. `sys_flag` carries the compression and
    transaction bits; the store sets the bits of the host families itself and never compresses.

    `property_text` is for who has the properties in their stored form, as a broker does: `name 0x01 value`, joined with
    0x02. It is stored as it is, nothing in it is acted on; `properties`, `keys`, `tags` and `delay_level` stay empty.
    """

    topic: str
    body: bytes
    keys: Sequence[str] | str = ()
    tags: str = ""
    properties: Mapping[str, str] | None = None
    queue_id: int = 0
    delay_level: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: str = "127.0.0.1:0"
    store_host: str = ""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    wait: bool = True
    property_text: str = ""
