"""The process that is killed: fills a store, says so, and waits.

`python -m bench.recovery.writer FOLDER BODY LOG_BYTES name=value ...`
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa

from bench.recovery.killed import message_columns
from penstock.store import MessageStore, Settings

_BATCH = 10_000


def main(folder: str, body: str, log_bytes: str, *pairs: str) -> None:
    store = MessageStore.open(Path(folder), Settings.load(pairs=list(pairs)))
    done = 0
    while store.log.max_offset < int(log_bytes):
        answer = store.put_arrow(pa.RecordBatch.from_pydict(message_columns(int(body), done, _BATCH)))
        if not answer.ok:
            sys.exit(f"a put was refused: {answer.reason}")
        done += _BATCH
    store.catch_up()
    print("done", flush=True)
    time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
