from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.loopback import at_most

from penstock.errors import BadRequest, MissingPackage
from penstock.protocol import compression
from penstock.protocol.compression import deflate_body, inflate, inflate_body


def zstd_without_size(data: bytes) -> bytes:
    """Like Java's stream: the frame does not state the length of its content."""
    writer = zstandard.ZstdCompressor().compressobj()
    return writer.compress(data) + writer.flush()


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "zlib": zlib.compress,
    "lz4": lz4.frame.compress,
    "zstd": zstd_without_size,
}
FLAGS = {0x001: "zlib", 0x101: "lz4", 0x201: "zstd", 0x301: "zlib"}
each_codec = pytest.mark.parametrize("codec", CODECS)


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 40])
def test_a_body_is_inflated_as_its_flag_says(flag: int, body: bytes) -> None:
    assert inflate_body(memoryview(CODECS[FLAGS[flag]](body)), flag) == body


def test_a_body_that_is_not_compressed_stays_as_it_is() -> None:
    assert inflate_body(b"plain", 0x8) == b"plain"


def test_what_is_deflated_is_inflated() -> None:
    body = b"hello " * 1000
    deflated = deflate_body(body)
    assert deflated[0] == 0x78
    assert inflate_body(deflated, 1) == body


@each_codec
def test_the_limit_itself_is_allowed_and_one_byte_more_is_not(codec: str) -> None:
    assert len(inflate(CODECS[codec](bytes(1000)), codec, limit=1000)) == 1000
    with pytest.raises(BadRequest, match="inflates to more than 1000 bytes"):
        inflate(CODECS[codec](bytes(1001)), codec, limit=1000)


@each_codec
def test_a_bomb_is_refused_without_the_memory_it_asks_for(codec: str) -> None:
    bomb = CODECS[codec](bytes(64 << 20))
    assert len(bomb) < 1 << 20
    with at_most(4 << 20), pytest.raises(BadRequest, match="inflates to more than"):
        inflate(bomb, codec, limit=1 << 20)


@each_codec
def test_a_body_cut_anywhere_is_refused(codec: str) -> None:
    whole = CODECS[codec](bytes(range(256)) * 4)
    for length in range(len(whole)):
        with pytest.raises(BadRequest, match=f"cannot be inflated with {codec}"):
            inflate(whole[:length], codec)


@each_codec
@given(st.binary(max_size=200))
def test_any_bytes_are_inflated_or_refused(codec: str, data: bytes) -> None:
    with suppress(BadRequest):
        inflate(data, codec, limit=10_000)
    with suppress(BadRequest):
        inflate(CODECS[codec](b"head")[:7] + data, codec, limit=10_000)


def test_a_codec_that_nobody_defined_is_refused() -> None:
    with pytest.raises(BadRequest, match="an unknown compression"):
        inflate_body(b"x", 0x501)


@pytest.mark.parametrize(("flag", "package"), [(0x101, "lz4"), (0x201, "zstandard")])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, flag: int, package: str) -> None:
    def not_installed(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(compression, "import_module", not_installed)
    with pytest.raises(MissingPackage, match=f"compressed with {package}, which is not installed; pip install"):
        inflate_body(b"x", flag)
