"""The worked examples of the format pages are true: the code reads and writes them as the pages say.

An example is a caption `**Worked example (kind).**`, a fenced block (`hex`, or `text` for a config file)
and a table `field | value`. In a hex block a line is bytes, then `# name`; `00*88` stands for 88 zero bytes.
The names are those of the nearest table OFFSET / SIZE / DESCRIPTION above that has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support import ROOT

from penstock.format import kernels
from penstock.format.checkpoint import Checkpoint
from penstock.format.fastjson import dumps, loads
from penstock.format.hosts import decode_host, encode_host
from penstock.format.index_layout import (
    IndexGeometry,
    IndexHeader,
    key_hash,
    pack_item,
    unpack_item,
)
from penstock.format.queue_ext import decode_ext_unit
from penstock.format.queue_unit import pack_unit, unpack_unit
from penstock.format.record import decode_record, encode_record
from penstock.format.scan import Blank, scan
from penstock.protocol import FrameReader, encode
from penstock.store import Message, MessageStore, Settings
from penstock.store.replication.epochs import decode_entries, encode_entries

FOLDER = ROOT / "docs" / "explanation" / "format"
PAGES = sorted(FOLDER.glob("*.md"))
CAPTION = re.compile(r"\*\*Worked example \(([a-z ]+?)(?: at (\d+))?\)\.\*\*")
V2_MAGIC = bytes.fromhex("daa320ab")

Table = list[list[str]]
Layout = dict[str, tuple[str, str]]


@dataclass(frozen=True)
class Example:
    """A worked example as it stands on a page."""

    place: str
    kind: str
    at: int
    data: bytes
    parts: tuple[tuple[str, int, int], ...]  # name, offset, size: one for each line of a hex block
    layout: Layout
    values: dict[str, str]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| \n").split(" | ")]


def tables_of(lines: list[str]) -> Iterator[tuple[int, Table]]:
    """(line number, rows with the heading first) of each table of a page."""
    number = 0
    while number < len(lines):
        begin = number
        while number < len(lines) and lines[number].startswith("|"):
            number += 1
        if number > begin:
            yield begin, [cells(line) for line in lines[begin:number] if not line.startswith("|---")]
        number += 1


def layouts_of(lines: list[str]) -> list[tuple[int, Layout]]:
    """The tables OFFSET / SIZE / DESCRIPTION whose rows begin with a field's name."""
    layouts = []
    for number, table in tables_of(lines):
        if table[0] == ["OFFSET", "SIZE", "DESCRIPTION"]:
            named = ((re.match(r"`(\w+)`", row[2]), row) for row in table[1:])
            layouts.append((number, {name[1]: (row[0], row[1]) for name, row in named if name}))
    return layouts


def bytes_of(line: str) -> tuple[str, bytes]:
    """(name, bytes) of a line of a hex block."""
    digits, _, name = line.partition("#")
    repeated = re.fullmatch(r"([0-9a-f]{2})\*(\d+)", digits.strip())
    data = bytes.fromhex(repeated[1]) * int(repeated[2]) if repeated else bytes.fromhex(digits)
    return name.strip(), data


def unquoted(value: str) -> str:
    return "" if value == "empty" else value.strip("`")


def examples_of(page: Path) -> Iterator[Example]:
    lines = page.read_text().splitlines()
    tables = dict(tables_of(lines))
    for number, line in enumerate(lines):
        caption = CAPTION.match(line)
        if caption is None:
            continue
        begin = next(n for n in range(number, len(lines)) if lines[n].startswith("```"))
        end = lines.index("```", begin + 1)
        block = lines[begin + 1 : end]
        heading, *rows = tables[end + 2]
        assert heading == ["field", "value"], f"{page.name}:{end + 3} is no table of fields and values"
        parts, data, layout = [], b"", {}
        if lines[begin] == "```hex":
            for name, piece in map(bytes_of, block):
                parts.append((name, len(data), len(piece)))
                data += piece
            names = {name for name, _, _ in parts}
            above = [fields for at, fields in layouts_of(lines) if at < number and names & fields.keys()]
            layout = above[-1] if above else {}
        else:
            data = "\n".join(block).encode()
        values = {name: unquoted(value) for name, value in rows}
        place = f"{page.stem}-line-{number + 1}"
        yield Example(place, caption[1], int(caption[2] or 0), data, tuple(parts), layout, values)


EXAMPLES = [example for page in PAGES for example in examples_of(page)]
each_example = pytest.mark.parametrize("example", EXAMPLES, ids=[example.place for example in EXAMPLES])


def picked(value: object, names: str) -> dict[str, object]:
    return {name: getattr(value, name) for name in names.split()}


def read_record(example: Example) -> dict[str, object]:
    record = decode_record(example.data)
    numbers = "size body_crc queue_id flag queue_offset physical_offset sys_flag born_timestamp store_timestamp"
    others = "born_host store_host reconsume_times prepared_transaction_offset topic msg_id"
    properties = ", ".join(f"{name}={value}" for name, value in record.properties.items())
    return picked(record, f"{numbers} {others}") | {"body": record.body.decode(), "properties": properties}


def read_filler(example: Example) -> dict[str, object]:
    (filler,) = scan(example.data, example.at, 0, len(example.data), check_crc=True)
    assert isinstance(filler, Blank)
    return picked(filler, "position size")


def read_unit(example: Example) -> dict[str, object]:
    return dict(zip(("physical_offset", "size", "tags_code"), unpack_unit(example.data), strict=True))


def read_ext_unit(example: Example) -> dict[str, object]:
    unit = decode_ext_unit(example.data, 0)
    return picked(unit, "size tags_code store_timestamp") | {"bit_map": unit.bit_map.hex()}


def read_index_item(example: Example) -> dict[str, object]:
    names = ("key_hash", "physical_offset", "seconds", "previous")
    return dict(zip(names, unpack_item(example.data), strict=True))


def read_checkpoint(example: Example) -> dict[str, object]:
    return picked(Checkpoint.unpack(example.data), "physic logics index min_timestamp min_timestamp_index")


def read_config(example: Example) -> dict[str, object]:
    def flat(value: object, path: str) -> Iterator[tuple[str, object]]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from flat(inner, f"{path}.{key}" if path else str(key))
        else:
            yield path, value if isinstance(value, str) else json.dumps(value)

    return dict(flat(loads(example.data.decode()), ""))


def read_index_header(example: Example) -> dict[str, object]:
    times = "begin_timestamp end_timestamp begin_physical_offset end_physical_offset"
    return picked(IndexHeader.unpack(example.data), f"{times} hash_slot_count index_count")


def read_frame(example: Example) -> dict[str, object]:
    (command,) = FrameReader().feed(example.data)
    texts = {
        "language": command.language.name,
        "remark": command.remark or "",
        "ext": ", ".join(f"{name}={value}" for name, value in command.ext.items()),
        "body": bytes(command.body).decode(),
    }
    return picked(command, "code flag opaque version") | texts


def write_filler(example: Example) -> bytes:
    out = bytearray(len(example.data))
    kernels.write_blank(out, 0, int(example.values["size"]))
    return bytes(out)


def put_record(example: Example) -> bytes:
    """The first record of a store that gives each record its own CRC."""
    wanted = decode_record(example.data)
    settings = Settings.dev(enabled_append_prop_crc=True)
    with (
        TemporaryDirectory() as folder,
        MessageStore.open(folder, settings, clock=lambda: wanted.store_timestamp) as store,
    ):
        message = Message(
            wanted.topic,
            wanted.body,
            born_timestamp=wanted.born_timestamp,
            born_host=wanted.born_host,
            store_host=wanted.store_host,
        )
        return store.look_up_encoded(store.put(message).physical_offset) or b""


READERS: dict[str, Callable[[Example], dict[str, object]]] = {
    "host": lambda example: {"host": decode_host(example.data)},
    "record": read_record,
    "sealed record": read_record,
    "filler": read_filler,
    "unit": read_unit,
    "ext unit": read_ext_unit,
    "index header": read_index_header,
    "index item": read_index_item,
    "checkpoint": read_checkpoint,
    "config": read_config,
    "epochs": lambda example: {str(epoch): start for epoch, start in decode_entries(example.data)},
    "frame": read_frame,
}
WRITERS: dict[str, Callable[[Example], bytes]] = {
    "host": lambda example: encode_host(example.values["host"]),
    "record": lambda example: encode_record(decode_record(example.data)),
    "sealed record": put_record,
    "filler": write_filler,
    "unit": lambda example: pack_unit(*map(int, example.values.values())),
    "index header": lambda example: IndexHeader(*map(int, example.values.values())).pack(),
    "index item": lambda example: pack_item(*map(int, example.values.values())),
    "checkpoint": lambda example: Checkpoint(*list(map(int, example.values.values()))[:3]).pack(),
    "config": lambda example: dumps(loads(example.data.decode())).encode(),
    "epochs": lambda example: encode_entries(decode_entries(example.data)),
    "frame": lambda example: encode(FrameReader().feed(example.data)[0]),
}
NEVER_WRITTEN = {"ext unit"}


@each_example
def test_the_code_reads_an_example_as_the_table_beside_it_says(example: Example) -> None:
    read = {name: str(value) for name, value in READERS[example.kind](example).items()}
    assert read == example.values


@pytest.mark.parametrize(
    "example",
    [e for e in EXAMPLES if e.kind not in NEVER_WRITTEN and e.data[4:8] != V2_MAGIC],
    ids=lambda example: example.place,
)
def test_the_code_writes_an_example_to_the_byte(example: Example) -> None:
    assert WRITERS[example.kind](example) == example.data


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.layout], ids=lambda example: example.place)
def test_an_example_has_each_field_where_the_layout_says(example: Example) -> None:
    shown = {name: (offset, size) for name, offset, size in example.parts}
    for name, (offset, size) in example.layout.items():
        if offset.isdigit() and size.isdigit():
            assert shown.get(name) == (int(offset), int(size)), name
        elif offset.isdigit() and name in shown:
            assert shown[name][0] == int(offset), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_fields_of_a_layout_follow_each_other_without_gaps(page: Path) -> None:
    for _, layout in layouts_of(page.read_text().splitlines()):
        rows = list(layout.values())
        for (offset, size), (following, _) in pairwise(rows):
            if offset.isdigit() and size.isdigit() and following.isdigit():
                assert int(offset) + int(size) == int(following)


def test_the_index_page_places_its_keys_where_the_code_does() -> None:
    geometry = IndexGeometry(5_000_000, 20_000_000)
    tables = [table for _, table in tables_of((FOLDER / "index-file.md").read_text().splitlines())]
    (keys,) = [table[1:] for table in tables if table[0][:2] == ["topic", "key"]]
    assert len(keys) == 3
    for row in keys:
        topic, key, hashed, slot, slot_at, *item = map(unquoted, row)
        assert key_hash(topic, key) == int(hashed)
        assert int(hashed) % geometry.slots == int(slot)
        assert geometry.slot_position(int(slot)) == int(slot_at)
        if any(item):
            assert geometry.item_position(int(item[0])) == int(item[1])
    assert geometry.file_size == 420_000_040


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_an_example_and_says_what_is_not_protected(page: Path) -> None:
    text = page.read_text()
    assert any(example.place.startswith(f"{page.stem}-line-") and example.parts for example in EXAMPLES)
    assert "\n## What is not protected\n" in text
    assert "\n## What readers must tolerate\n" in text
