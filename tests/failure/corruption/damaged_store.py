"""Small stores, known to the last byte, and seeded damage to any of their files."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from support.disks import UnsyncedFiles
from support.messages import SMALL_FILES, message, number_of, read_queue

from penstock.format.config_tables import ConsumerOffsets, DelayOffsets, SubscriptionGroups, TopicConfigs
from penstock.format.queue_unit import UNIT_SIZE
from penstock.store import MessageStore, Record, Settings
from penstock.store.config_files import ConfigFiles

SETTINGS = Settings.dev(**SMALL_FILES, flush_interval_consume_queue=3_600_000)
MESSAGES = 110
_WEIGHTS = {"commitlog": 45, "consumequeue": 20, "index": 12, "config": 8, "penstock": 6}
"""How often a file of a folder is hit; files beside the folders, 3 each."""


class Base(NamedTuple):
    """A store as it was before anything happened to it."""

    files: dict[str, bytes]
    """By path in the store."""
    records: dict[int, Record]
    """By physical offset."""
    is_clean: bool

    def write_to(self, folder: Path) -> None:
        """Makes a copy in place of whatever is there."""
        shutil.rmtree(folder, ignore_errors=True)
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def make_base(folder: Path, *, is_clean: bool) -> Base:
    """Closed cleanly, or as a kill leaves it: not closed, half a record at the end."""
    with MessageStore.open(folder, SETTINGS, files=UnsyncedFiles()) as store:
        put(store, range(MESSAGES - 20))
        write_config(store)
    with MessageStore.open(folder, SETTINGS, files=UnsyncedFiles()) as store:
        put(store, range(MESSAGES - 20, MESSAGES))
        store.catch_up()  # a record without its unit has nothing that vouches for its queue
        crashed = read_files(folder)
        tear(crashed, store.log.max_offset)
        found = [record for queue in store.queues for record in read_queue(store, queue.topic, queue.queue_id)]
    assert sorted(map(number_of, found)) == list(range(MESSAGES))
    files = read_files(folder) if is_clean else crashed
    return Base(files, {record.physical_offset: record for record in found}, is_clean)


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def put(store: MessageStore, numbers: range) -> None:
    for number in numbers:
        assert store.put(message(number)).ok


def write_config(store: MessageStore) -> None:
    files = ConfigFiles(UnsyncedFiles(), store.layout.config)
    for _ in range(2):  # the second time makes the backups
        files.topics.write(TopicConfigs.from_json({}))
        files.consumer_offsets.write(ConsumerOffsets.from_json({"offsetTable": {"orders@group": {"0": 3, "1": 2}}}))
        files.delay_offsets.write(DelayOffsets.from_json({"offsetTable": {"1": 1}}))
        files.subscription_groups.write(SubscriptionGroups.from_json({}))


def tear(files: dict[str, bytes], end: int) -> None:
    """Puts the first half of another record behind the last one."""
    position = end % SETTINGS.mapped_file_size_commit_log
    name = f"commitlog/{end - position:020d}"
    content = files[name]
    half = content[: int.from_bytes(content[:4], "big") // 2]
    files[name] = content[:position] + half + content[position + len(half) :]


# -- damage --------------------------------------------------------------------------------------------------


class Damage(NamedTuple):
    """What was done to which file: the bytes that are not what they were."""

    what: str
    touched: dict[str, np.ndarray]
    """Path in the store -> positions."""
    is_shape: bool
    """Whether a file has another size now, another name, or none."""

    def hits(self, name: str, start: int, stop: int) -> bool:
        positions = self.touched.get(name)
        return positions is not None and bool(((positions >= start) & (positions < stop)).any())

    def hits_record(self, record: Record) -> bool:
        size = SETTINGS.mapped_file_size_commit_log
        position = record.physical_offset % size
        name = f"commitlog/{record.physical_offset - position:020d}"
        return self.hits(name, position, position + record.size)

    def hits_unit(self, record: Record) -> bool:
        size = SETTINGS.mapped_file_size_consume_queue
        position = record.queue_offset * UNIT_SIZE
        start = position % size
        name = f"consumequeue/{record.topic}/{record.queue_id}/{position - start:020d}"
        return self.hits(name, start, start + UNIT_SIZE)

    def hits_folder(self, folder: str) -> bool:
        return any(name.startswith(f"{folder}/") for name in self.touched)


def do_damage(store: Path, chance: random.Random) -> Damage:
    """Does one kind of damage to one file (or two, where files are swapped)."""
    name = _pick_file(store, chance)
    path = store / name
    before = path.read_bytes()
    kind = chance.choice(KINDS if before else [truncate, extend, remove, swap])
    what = kind(path, chance)
    is_shape = not path.exists() or path.stat().st_size != len(before)
    touched = {name: _differences(before, path)}
    if kind is swap and path.exists():
        touched[what.rpartition(" ")[2]] = touched[name]
    return Damage(f"{kind.__name__} {name}: {what}", {k: v for k, v in touched.items() if len(v)}, is_shape)


def _pick_file(store: Path, chance: random.Random) -> str:
    names = sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())
    folders: dict[str, list[str]] = {}
    for name in names:
        top, slash, _ = name.partition("/")
        folders.setdefault(top if slash else name, []).append(name)
    weights = [_WEIGHTS.get(folder, 3) for folder in folders]
    return chance.choice(folders[chance.choices(list(folders), weights)[0]])


def _differences(before: bytes, path: Path) -> np.ndarray:
    after = path.read_bytes() if path.exists() else b""
    common = min(len(before), len(after))
    old, new = np.frombuffer(before, np.uint8), np.frombuffer(after, np.uint8)
    changed = np.flatnonzero(old[:common] != new[:common])
    return np.concatenate([changed, np.arange(common, max(len(before), len(after)))])


def _write(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def _range(path: Path, chance: random.Random) -> tuple[int, int]:
    """A place, mostly where something is written, and a length."""
    content = path.read_bytes()
    used = len(content.rstrip(b"\0")) or len(content)
    start = chance.randrange(used if chance.random() < 0.9 else len(content))
    if chance.random() < 0.3:
        start -= start % chance.choice((20, 512))
    length = chance.choice((1, 2, 4, 8, 20, 100, 512, 4096, len(content)))
    return start, min(length, len(content) - start)


def flip(path: Path, chance: random.Random) -> str:
    at = []
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        position, _ = _range(path, chance)
        _write(path, position, bytes([path.read_bytes()[position] ^ 1 << chance.randrange(8)]))
        at.append(position)
    return f"bits at {at}"


def zeros(path: Path, chance: random.Random) -> str:
    start, length = _range(path, chance)
    _write(path, start, bytes(length))
    return f"{start} to {start + length}"


def noise(path: Path, chance: random.Random) -> str:
    start, length = _range(path, chance)
    _write(path, start, chance.randbytes(length))
    return f"{start} to {start + length}"


def stale(path: Path, chance: random.Random) -> str:
    """Bytes of another place of the same file: they were valid where they came from."""
    start, length = _range(path, chance)
    content = path.read_bytes()
    source = chance.randrange(len(content) - length + 1)
    magic = content.find(b"\xda\xa3\x20\xa7", source)
    if magic >= 4 and chance.random() < 0.7:  # a whole record, where another began
        source, target = magic - 4, content.find(b"\xda\xa3\x20\xa7", start)
        start = target - 4 if target >= 4 else start
        length = min(int.from_bytes(content[source : source + 4], "big"), len(content) - start, len(content) - source)
    _write(path, start, content[source : source + length])
    return f"{start} to {start + length} from {source}"


def truncate(path: Path, chance: random.Random) -> str:
    size = path.stat().st_size
    length = chance.choice((0, 1, size // 2, max(size - 1, 0), chance.randrange(size + 1)))
    os.truncate(path, length)
    return f"from {size} to {length}"


def extend(path: Path, chance: random.Random) -> str:
    more = chance.choice((1, 20, 4096, path.stat().st_size + 1))
    data = bytes(more) if chance.random() < 0.5 else chance.randbytes(more)
    with path.open("ab") as file:
        file.write(data)
    return f"by {more}"


def remove(path: Path, chance: random.Random) -> str:
    path.unlink()
    return "gone"


def swap(path: Path, chance: random.Random) -> str:
    """The names of two files of one folder are exchanged."""
    others = sorted(each for each in path.parent.iterdir() if each.is_file() and each != path)
    if not others:
        return remove(path, chance)
    other = chance.choice(others)
    aside = path.with_name("aside")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)
    store = next(parent for parent in path.parents if (parent / "commitlog").is_dir())
    return f"with {other.relative_to(store)}"


Kind = Callable[[Path, random.Random], str]
KINDS: list[Kind] = [flip, flip, flip, flip, zeros, zeros, noise, noise, stale, stale, truncate, extend, remove, swap]
