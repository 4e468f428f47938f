"""The compiled kernels with arguments that fit their types and nothing else: they answer or refuse, and end.

Whether they read or write outside their buffers shows under AddressSanitizer only: `make sanitize` runs this file with
it. PENSTOCK_CALLS sets the number of calls; to repeat a run: PENSTOCK_SEED=<seed>.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.effort import TWINS, chosen_seed

from penstock.errors import CorruptData
from penstock.format.kernel_row_types import PUT_ROW, ROW
from penstock.format.kernels import plain
from penstock.format.kernels.parameter_types import ListColumn, MapColumn, TextColumn, UnitFile
from penstock.format.record import Record

CALLS = int(os.environ.get("PENSTOCK_CALLS", "6000"))
REFUSALS = (ValueError, TypeError, OverflowError, MemoryError, IndexError, BufferError, UnicodeError, CorruptData)
EDGES = (0, 1, -1, 4, 20, 40, 88, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
FUNCTIONS = sorted(name for name in plain.__all__ if inspect.isfunction(getattr(plain, name)))
UNBOUNDED = ("max_rows", "count", "limit", "max_records", "size", "room")
"""Arguments that say how much memory a call may take."""
SLOTS, ITEMS = 7, 20
INDEX_CALLS = (["data", "slots", "items"], ["out", "slots", "items"])
"""The first parameters of a kernel on an index file, whose size must fit."""

pytestmark = pytest.mark.skipif("compiled" not in TWINS, reason="there are no compiled kernels")


class Chance:
    """Chooses arguments by the types of the parameters."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._by_type: dict[str, Callable[[], Any]] = {
            "int": self.number,
            "bool": lambda: self.random.random() < 0.5,
            "bytes": lambda: bytes(self.data(20)),
            "str": lambda: self.data(12).decode("latin-1"),
            "Buffer": lambda: bytes(self.data(600)),
            "WritableBuffer": lambda: self.data(600),
            "bytearray | None": lambda: self.random.choice([None, self.data(60)]),
            "Ints": lambda: self.array(np.int32),
            "Longs": lambda: self.array(np.int64),
            "Longs | None": lambda: self.random.choice([None, self.array(np.int64)]),
            "Rows": lambda: self.array(ROW),
            "PutTable": lambda: self.array(PUT_ROW),
            "TextColumn": self.texts,
            "TextColumn | None": lambda: self.random.choice([None, self.texts()]),
            "ListColumn | None": lambda: ListColumn(self.array(np.int32), self.texts(), self.valid()),
            "MapColumn | None": lambda: MapColumn(self.array(np.int32), self.texts(), self.texts(), self.valid()),
            "tuple[int, ...]": lambda: tuple(self.number() for _ in range(self.random.randrange(4))),
            "tuple[bytes, ...]": lambda: tuple(bytes(self.data(8)) for _ in range(self.random.randrange(4))),
            "tuple[str, ...]": lambda: tuple(self.random.choices(ROW.names or (), k=2)),
            "list[str]": lambda: [self.data(8).decode("latin-1") for _ in range(self.random.randrange(4))],
            "list[Buffer]": lambda: [bytes(self.data(600)) for _ in range(self.random.randrange(3))],
            "Sequence[Buffer]": lambda: [bytes(self.data(600)) for _ in range(self.random.randrange(3))],
            "Sequence[Residency | None] | None": lambda: self.random.choice([None, [], [None] * 2]),
            "Topics | None": lambda: None,
            "Callable[..., T]": lambda: Record,
            "list[UnitFile]": lambda: [
                UnitFile(self.number(), self.number(), self.number(), bytes(self.data(90)))
                for _ in range(self.random.randrange(3))
            ],
            "TopicTable": lambda: compiled().TopicTable(),
        }

    def call(self, name: str) -> None:
        parameters = list(inspect.signature(getattr(plain, name)).parameters.values())
        given = [
            self.random.randrange(-2, 300) if each.name in UNBOUNDED and each.annotation == "int" else self.any(each)
            for each in parameters
        ]
        if [each.name for each in parameters][:3] in INDEX_CALLS and self.random.random() < 0.8:
            given[:3] = [bytearray(self.random.randbytes(40 + 4 * SLOTS + 20 * ITEMS)), SLOTS, ITEMS]
            given = [
                np.zeros(SLOTS, np.int32) if each.name == "newest" else value
                for each, value in zip(parameters, given, strict=True)
            ]
        with contextlib.suppress(REFUSALS):
            getattr(compiled(), name)(*given)

    def any(self, parameter: inspect.Parameter) -> Any:
        return self._by_type[parameter.annotation]()

    def number(self) -> int:
        return self.random.choice(EDGES) if self.random.random() < 0.4 else self.random.randrange(-2, 300)

    def data(self, most: int) -> bytearray:
        """Bytes that look a little like records: lengths and magics at aligned places."""
        data = bytearray(self.random.randbytes(self.random.randrange(most)))
        for _ in range(self.random.randrange(6)):
            if len(data) > 8:
                at = self.random.randrange(len(data) - 4)
                data[at : at + 4] = (self.random.choice((0xDAA320A7, 0xCBD43194, len(data), 20, 0)) % 2**32).to_bytes(
                    4, "big"
                )
        return data

    def array(self, dtype: Any) -> Any:
        made = np.zeros(self.random.randrange(9), dtype)
        for name in made.dtype.names or (None,):
            column = made if name is None else made[name]
            for at in range(len(column)):
                low = self.random.random() < 0.8
                value = self.random.randrange(300) if low else self.random.choice(EDGES)
                column[at] = np.array(value, np.int64).astype(column.dtype)
        return made

    def texts(self) -> TextColumn:
        return TextColumn(self.array(np.int32), bytes(self.data(60)), self.valid())

    def valid(self) -> Any:
        return self.random.choice([None, np.array([True, False] * 4)])


def compiled() -> Any:
    return importlib.import_module("penstock.format.kernels._compiled")


def test_every_type_of_a_parameter_is_known_here() -> None:
    chance = Chance(1)
    for name in FUNCTIONS:
        for each in inspect.signature(getattr(plain, name)).parameters.values():
            chance.any(each)


def test_hostile_arguments_are_answered_or_refused() -> None:
    chance = Chance(chosen_seed())
    for number in range(CALLS):
        chance.call(FUNCTIONS[number % len(FUNCTIONS)])
