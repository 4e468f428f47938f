"""The pipeline without a Spark session: reads of stores and clusters, audits in pieces, bodies to decode, schemas.

Tasks are pickled between planning and reading, as on their way to a worker.
"""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from penstock.client.message import Message
from penstock.client.sync import Producer
from penstock.format.arrow_rows import MESSAGE_SCHEMA
from penstock.format.record import Record
from penstock.pipeline.cluster_read_tasks import ClusterAccess
from penstock.pipeline.cluster_source import ClusterSource
from penstock.pipeline.jobs.verify import AuditAnswer, NumberedPiece, answers, audit_stores
from penstock.pipeline.offset_ranges import OffsetRange, Queue, ReadTask, RowPage
from penstock.pipeline.options import Options
from penstock.pipeline.scan_plan import plan_batch
from penstock.pipeline.source import known_columns, schema_of
from penstock.pipeline.source_rows import RowShape
from penstock.store import MessageStore
from penstock.store.audit import AuditReport, audit
from penstock.store.audit.several_stores import Stores, Verified
from penstock.store.readonly.store_folder import StoreFolder
from penstock.testing import LocalBroker
from support.arrow import expected_row, rows_of
from support.damage import ITEMS, SLOTS

Rows = list[dict[str, Any]]
CORRUPT = "_corrupt"


def options_for(path: Path | str, **given: object) -> Options:
    """Options as a user gives them: numbers and flags become text."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    options = Options.read({"path": str(path), **texts})
    options.check_reading()
    return options


def sent(tasks: Iterable[ReadTask]) -> list[ReadTask]:
    """The tasks as they arrive at workers."""
    return [pickle.loads(pickle.dumps(task)) for task in tasks]


def read_table(options: Options, tasks: Iterable[ReadTask], names: Sequence[str] = ()) -> pa.Table:
    """What tasks return, one after the other. `names` are the columns, as `.schema(...)` says them."""
    schema = schema_of(options)
    if names:
        known = known_columns(options)
        schema = StructType([StructField(name, known[name]) for name in names])
    shape, arrow = (
        pickle.loads(pickle.dumps(RowShape.of(options, schema.names))),
        to_arrow_schema(schema, timezone="UTC"),
    )
    batches: list[pa.RecordBatch] = [batch for task in sent(tasks) for batch in shape.batches(task, arrow)]
    assert all(batch.num_rows and batch.schema == arrow for batch in batches)
    return pa.Table.from_batches(batches, arrow)


def read_tasks(options: Options, tasks: Iterable[ReadTask], names: Sequence[str] = ()) -> Rows:
    """The same as rows that are valid in every respect."""
    return [row for batch in read_table(options, tasks, names).to_batches() for row in rows_of(batch)]


def read(path: Path | str, names: Sequence[str] = (), **given: object) -> Rows:
    """A batch read from beginning to end."""
    options = options_for(path, **given)
    return read_tasks(options, plan_batch(options), names)


def row_of(record: Record, broker: str = "store") -> dict[str, Any]:
    """The row that a message must be; its body as it is stored."""
    row = expected_row(record)
    return {"topic": row.pop("topic"), "broker": broker, **row}


def as_rows(records: Iterable[Record], broker: str = "store") -> Rows:
    return [row_of(record, broker) for record in records]


def every_record(store: MessageStore) -> list[Record]:
    """Every record of a log, one by one, in log order."""
    found: list[Record] = []
    offset = max(store.log.min_offset, 0)
    while offset < store.log.confirmed_offset:
        page = store.log_arrow(offset, columns=["physical_offset"])
        for each in page.batch.column("physical_offset").to_pylist():
            record = store.look_up(each)
            assert record is not None
            found.append(record)
        offset = page.next_offset
    return found


ALL_COLUMNS = tuple(MESSAGE_SCHEMA.names)


def send(b: LocalBroker, messages: Iterable[Message]) -> None:
    """Sends in batches, one topic at a time; all of it can be read afterwards."""
    by_topic: dict[str, list[Message]] = {}
    for message in messages:
        by_topic.setdefault(message.topic, []).append(message)
    with Producer("PID", b.namesrv) as producer:
        for group in by_topic.values():
            for first in range(0, len(group), 50):
                producer.send_batch(group[first : first + 50])
    b.settle()


def cluster_source(b: LocalBroker, **options: str) -> ClusterSource:
    return ClusterSource(Options.read({"namesrv": b.namesrv, **options}))


def access_to(namesrv: str, patience_s: float = 30.0) -> ClusterAccess:
    return ClusterAccess(namesrv, "TOOLS_CONSUMER", patience_s=patience_s)


def whole(source: ClusterSource, *topics: str) -> list[OffsetRange]:
    """Everything that the queues of some topics hold."""
    return [OffsetRange(queue, *source.bounds(queue)) for queue in source.queues(topics)]


def read_pages(task: ReadTask, columns: Sequence[str] = ALL_COLUMNS) -> list[RowPage]:
    return list(task.pages(columns))


def column_of(pages: Iterable[RowPage], column: str) -> list[object]:
    return [value for page in pages for value in page.batch.column(column).to_pylist()]


def places(pages: Iterable[RowPage]) -> list[Queue | tuple[Queue, int]]:
    """The queue and the queue offset of every row, in order."""
    return [
        (Queue(topic, page.broker, queue_id), offset)
        for page in pages
        for topic, queue_id, offset in zip(
            *(page.batch.column(name).to_pylist() for name in ("topic", "queue_id", "queue_offset")), strict=True
        )
    ]


def table(pages: Iterable[RowPage]) -> pa.Table:
    return pa.Table.from_batches([page.batch for page in pages])


PAIRS = (f"maxHashSlotNum={SLOTS}", f"maxIndexNum={ITEMS}")
"""What must be said of a `SoundStore`: an index file does not say its geometry."""
Tasks = Sequence[Sequence[NumberedPiece]]
Answers = list[tuple[int, AuditAnswer]]


def in_process(tasks: Tasks) -> Answers:
    """What Spark does with tasks."""
    results: Answers = []
    for sent in [pickle.dumps(task) for task in tasks]:
        results += pickle.loads(answers(pickle.loads(sent)))
    random.Random(len(results)).shuffle(results)
    return results


def stores_at(*paths: Path | str) -> Stores:
    return Stores.find([str(path) for path in paths], pairs=PAIRS)


def verified(*paths: Path | str, piece_size: int = 0) -> dict[str, Verified]:
    return audit_stores(stores_at(*paths), in_process, piece_size=piece_size)


def audit_here(path: Path | str) -> AuditReport:
    """What `penstock store verify` has to say."""
    folder = StoreFolder.find(Path(path), None, PAIRS)
    return audit(folder.layout, folder.settings, folder.files)


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "count", "type": "int"}]}}},
        {"name": "extra", "type": {"type": "map", "values": "Line"}},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "either", "type": ["null", "int", "string"]},
    ],
}  # fmt: skip


def avro_body(order: dict[str, Any]) -> bytes:
    """A single datum without a header."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), order)
    return out.getvalue()


def proto() -> descriptor_pb2.FileDescriptorSet:
    """What protoc would make of a message with a field of each kind."""
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    colour = file.enum_type.add(name="Colour")
    colour.value.add(name="RED", number=0)
    order = file.message_type.add(name="Order")
    fields = descriptor_pb2.FieldDescriptorProto
    entry = order.nested_type.add(name="ExtraEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=fields.TYPE_STRING, label=fields.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=fields.TYPE_INT32, label=fields.LABEL_OPTIONAL)
    one, many = fields.LABEL_OPTIONAL, fields.LABEL_REPEATED
    for number, (name, kind, label, type_name) in enumerate(
        [
            ("id", fields.TYPE_UINT64, one, ""),
            ("name", fields.TYPE_STRING, one, ""),
            ("raw", fields.TYPE_BYTES, one, ""),
            ("counts", fields.TYPE_INT32, many, ""),
            ("colour", fields.TYPE_ENUM, one, ".shop.Colour"),
            ("at", fields.TYPE_MESSAGE, one, ".google.protobuf.Timestamp"),
            ("missing", fields.TYPE_MESSAGE, one, ".google.protobuf.Timestamp"),
            ("extra", fields.TYPE_MESSAGE, many, ".shop.Order.ExtraEntry"),
        ],
        1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="left", number=1, type=fields.TYPE_MESSAGE, label=one, type_name=".shop.Tree")
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    return descriptor_pb2.FileDescriptorSet(file=[stamp, file])


def proto_body(at: datetime, **fields: Any) -> bytes:
    """A `shop.Order`."""
    pool = descriptor_pool.DescriptorPool()
    for file in proto().file:
        pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**fields)
    order.at.FromDatetime(at)
    body: bytes = order.SerializeToString()
    return body


_TYPES = {
    "binary": BinaryType(),
    "string": StringType(),
    "varchar(20)": VarcharType(20),
    "tinyint": ByteType(),
    "smallint": ShortType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "array<string>": ArrayType(StringType()),
    "array<int>": ArrayType(IntegerType()),
    "map<string,string>": MapType(StringType(), StringType()),
    "array<struct<key:string,value:binary>>": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
    "map<string,int>": MapType(StringType(), IntegerType()),
}


def columns_of(text: str) -> StructType:
    """`body binary, queue_id int`"""
    pairs = (column.split(" ") for column in text.split(", "))
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])
