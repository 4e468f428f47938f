from __future__ import annotations

import pytest

from penstock.errors import CorruptData
from penstock.format import sys_flag


@pytest.mark.parametrize(
    ("flag", "kind", "queued"),
    [
        (0x0, sys_flag.TRANSACTION_NONE, True),
        (0x4, sys_flag.TRANSACTION_PREPARED, False),
        (0x8, sys_flag.TRANSACTION_COMMIT, True),
        (0xC, sys_flag.TRANSACTION_ROLLBACK, False),
        (0x3B, sys_flag.TRANSACTION_COMMIT, True),
    ],
)
def test_the_transaction_type_decides_whether_a_record_enters_its_queue(flag: int, kind: int, queued: bool) -> None:
    assert sys_flag.transaction_type(flag) == kind
    assert sys_flag.enters_queue(flag) is queued


@pytest.mark.parametrize(
    ("flag", "codec"),
    [(0x0, None), (0x100, None), (0x1, "zlib"), (0x101, "lz4"), (0x201, "zstd"), (0x301, "zlib")],
)
def test_the_codec_of_a_compressed_body(flag: int, codec: str | None) -> None:
    assert sys_flag.compression_codec(flag) == codec


def test_a_codec_nobody_defined_is_refused() -> None:
    with pytest.raises(CorruptData):
        sys_flag.compression_codec(0x401)


@pytest.mark.parametrize("flag", [0x0, 0x30, 0x13B])
def test_the_ipv6_bits_follow_the_hosts(flag: int) -> None:
    others = flag & ~0x30
    assert sys_flag.with_hosts(flag, bytes(8), bytes(8)) == others
    assert sys_flag.with_hosts(flag, bytes(20), bytes(8)) == others | 0x10
    assert sys_flag.with_hosts(flag, bytes(8), bytes(20)) == others | 0x20
    assert sys_flag.host_sizes(sys_flag.with_hosts(flag, bytes(20), bytes(20))) == (20, 20)
