"""A kill while a batch is taken back, at several pages of it: what is left is the batch up to one of its records.

The process protects a page of the log just before it takes the batch back. So the system kills it at its first store to
that page, and everything that it has stored before is in the file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from support import ROOT, TESTS
from support.messages import read_queue
from support.stores import StoreHome

from penstock.format import kernels
from penstock.store.audit.audit import audit
from penstock.store.message import Message

ALONE, BATCH = range(3), range(3, 15)
WRITER = f"""
import ctypes, mmap, resource, sys
from penstock.format import kernels
from penstock.store import Message, MessageStore, Settings

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
_, root, way, page = sys.argv
store = MessageStore.open(root, Settings.dev())
for number in {ALONE!r}:
    assert store.put(Message("T", b"%d" % number)).ok
store.catch_up()
file = store.log.queue.last


def protect():
    held = ctypes.c_char.from_buffer(file.map.memory)
    first = file.wrote // mmap.PAGESIZE + int(page)
    address = ctypes.addressof(held) + first * mmap.PAGESIZE
    assert ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ) == 0


class Odd:
    def __bool__(self):
        protect()
        return True


def interrupt(*given):
    protect()
    raise KeyboardInterrupt


batch = [Message("T", b"%d" % number, properties={{"p": "v" * 3000}}) for number in {BATCH!r}]
if way == "declined":  # the compiled appender takes the batch back when it comes to the last message
    batch.append(Message("T", b"", tags=Odd()))
else:
    store.log.appender.is_open = False
    kernels.publish = interrupt
store.put_many(batch)
"""


def kill_at(home: StoreHome, way: str, page: int) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{TESTS}{os.pathsep}{ROOT / 'src'}",
        "PENSTOCK_KERNELS": kernels.active,
    }
    command = [sys.executable, "-c", WRITER, str(home.path), way, str(page)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (-signal.SIGSEGV, -signal.SIGBUS), (done.returncode, done.stderr)


@pytest.mark.parametrize("page", [0, 1, 4, 8])
@pytest.mark.parametrize("way", ["declined", "interrupted"])
def test_a_kill_while_a_batch_is_taken_back_leaves_the_batch_up_to_one_of_its_records(
    home: StoreHome, way: str, page: int
) -> None:
    if way == "declined" and kernels.active == "plain":
        pytest.skip("the plain appender declines before it writes")
    kill_at(home, way, page)
    with home.open() as store:
        assert store.report.damage == []
        served = [(record.queue_offset, record.body) for record in read_queue(store, "T", 0)]
    assert served == [(number, b"%d" % number) for number in range(len(served))]
    assert len(ALONE) <= len(served) <= len(ALONE) + len(BATCH)
    assert audit(home.path).errors == []
    with home.open() as store:
        assert store.put(Message("T", b"more")).queue_offset == len(served)
