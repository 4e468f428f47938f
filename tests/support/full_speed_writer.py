"""A process that fills a store as fast as it can: `full_speed_writer.py FOLDER MESSAGES [name=value ...]`.

Several threads put single messages and batches until the store has at least MESSAGES. Then `FOLDER.json` says which
offsets were acknowledged, the sum of their sizes, and where the log ends.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from pathlib import Path

from penstock.store import Message, MessageStore, Settings

THREADS = 3
FILE_SIZE = 256 << 10


class Writer(threading.Thread):
    """Puts until it has its share; keeps the answers."""

    def __init__(self, store: MessageStore, number: int, share: int) -> None:
        super().__init__()
        self._store = store
        self._random = random.Random(number)
        self._number = number
        self._share = share
        self.offsets: list[int] = []
        self.total = 0

    def message(self) -> Message:
        chance = self._random
        body = bytes([chance.randrange(256)]) * chance.choice((0, 1, 10, 100, 1000, 4000))
        if chance.random() < 0.1:
            return Message("odd", body, tags="t", properties={"name": "value"}, born_host="[::1]:1")
        return Message("even", body, keys=("a", "b"), queue_id=self._number)

    def run(self) -> None:
        while len(self.offsets) < self._share:
            if self._random.random() < 0.05:
                answers = self._store.put_many([self.message() for _ in range(self._random.randint(2, 20))]).results
            else:
                answers = (self._store.put(self.message()),)
            for answer in answers:
                assert answer.ok, answer.reason
                self.offsets.append(answer.physical_offset)
                self.total += answer.size


def main() -> None:
    folder, count, *pairs = sys.argv[1:]
    settings = Settings.load(pairs=pairs, base=Settings.dev(mapped_file_size_commit_log=FILE_SIZE))
    with MessageStore.open(folder, settings) as store:
        writers = [Writer(store, number, int(count) // THREADS) for number in range(THREADS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        offsets = sorted(offset for writer in writers for offset in writer.offsets)
        total = sum(writer.total for writer in writers)
        end = store.log.queue.wrote_offset
    Path(f"{folder}.json").write_text(json.dumps({"offsets": offsets, "total": total, "end": end}))


if __name__ == "__main__":
    main()
