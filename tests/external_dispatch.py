"""What tests of external dispatch share: the job's batches run in this process, and files to compare."""

from __future__ import annotations

from pathlib import Path

from store_home import StoreHome

from penstock.store import Message, MessageStore
from penstock.store.external.builder import Builder
from penstock.store.external.scan import LogRange, Piece, cut_range, decode_piece, encode_piece, scan


def pieces_of(builder: Builder, stop: int, count: int = 3) -> list[Piece]:
    """What workers would find between where the builder stands and `stop`."""
    settings, found = builder.settings, []
    for number, (begin, end) in enumerate(cut_range(builder.position, stop, count, 1)):
        place = LogRange(
            builder.layout.commit_log,
            settings.mapped_file_size_commit_log,
            begin,
            end,
            number == 0,
            settings.delay_levels,
        )
        found += [decode_piece(encode_piece(piece)) for piece in scan(place)]
    return found


def build_all(builder: Builder, *, step: int = 1 << 30, count: int = 3) -> int:
    """Batches of `step` bytes up to what is published; how many there were."""
    batches = 0
    while (end := builder.published) > builder.position:
        stop = min(end, builder.position + step)
        builder.build(stop, pieces_of(builder, stop, count))
        batches += 1
    return batches


def derived_files(folder: Path) -> dict[str, bytes]:
    """Queues by path, and index files by number: their names tell when they were made."""
    queues = sorted(path for path in (folder / "consumequeue").rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in queues}
    indexes = sorted((folder / "index").iterdir()) if (folder / "index").exists() else []
    return {**found, **{f"index {number}": path.read_bytes() for number, path in enumerate(indexes)}}


def put_mixed(home: StoreHome, store: MessageStore, count: int, start: int = 0) -> None:
    """Messages of several topics and queues, with and without keys and tags, some in batches, some delayed."""
    for number in range(start, start + count):
        home.clock.now += number % 3
        topic, queue_id = f"T{number % 3}", number % 4
        if number % 17 == 5:
            many = [Message(topic, b"batch %d %d" % (number, each), queue_id=queue_id) for each in range(3)]
            assert store.put_many(many).ok
            continue
        properties = {"DELAY": "2"} if number % 29 == 7 else {}
        keys = (f"k{number}", f"shared{number % 5}") if number % 2 else ()
        message = Message(
            topic,
            b"%d" % number * (1 + number % 50),
            tags="red" if number % 3 else "",
            keys=keys,
            queue_id=queue_id,
            properties=properties,
        )
        assert store.put(message).ok
