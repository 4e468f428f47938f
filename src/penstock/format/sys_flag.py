"""The bits of a record's sysFlag."""

from __future__ import annotations

from typing import Final

from penstock.errors import CorruptData
from penstock.format.hosts import IPV6_HOST_SIZE

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2

TRANSACTION_MASK: Final = 0xC  # a two-bit number, not two flags
TRANSACTION_NONE: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80

COMPRESSION_MASK: Final = 0x700
_CODECS: Final = {0x000: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}


def transaction_type(flag: int) -> int:
    """Returns TRANSACTION_NONE, TRANSACTION_PREPARED, TRANSACTION_COMMIT or TRANSACTION_ROLLBACK."""
    return flag & TRANSACTION_MASK


def enters_queue(flag: int) -> bool:
    """Returns whether the record gets a unit in its queue. PREPARED and ROLLBACK records get none."""
    return transaction_type(flag) in (TRANSACTION_NONE, TRANSACTION_COMMIT)


def compression_codec(flag: int) -> str | None:
    """Returns 'zlib', 'lz4' or 'zstd', or None if the body is not compressed. Raises CorruptData for another codec."""
    if not flag & COMPRESSED:
        return None
    codec = _CODECS.get(flag & COMPRESSION_MASK)
    if codec is None:
        raise CorruptData("sysFlag has an unknown compression", found=hex(flag), expected="0 to 3 in 0x700")
    return codec


def host_sizes(flag: int) -> tuple[int, int]:
    """Returns the sizes in bytes of the born host and the store host."""
    return (20 if flag & BORN_HOST_V6 else 8, 20 if flag & STORE_HOST_V6 else 8)


def with_hosts(flag: int, born_host: bytes, store_host: bytes) -> int:
    """Returns `flag` with its two IPv6 bits set or cleared according to the encoded hosts."""
    flag &= ~(BORN_HOST_V6 | STORE_HOST_V6)
    if len(born_host) == IPV6_HOST_SIZE:
        flag |= BORN_HOST_V6
    if len(store_host) == IPV6_HOST_SIZE:
        flag |= STORE_HOST_V6
    return flag
