"""Typical mistakes at the command line: one sentence that names what was given and says what to do, and status 2.

In those of jobs on Spark no Spark is started: whoever mistypes an option hears it at once. What errors the sources have
beside these is looked at in test_error_sentences.py.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from cli.conftest import run_as_process

from penstock.store import Message, MessageStore, Settings

if TYPE_CHECKING:
    from cli.conftest import Run


class Place(NamedTuple):
    """Where mistakes are made: a store, one that is open, and things that are no store."""

    store: Path
    owned: Path
    rocksdb: Path
    missing: Path
    file: Path
    garbage: Path
    taken: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("mistakes")
    found = Place(*(folder / name for name in Place._fields[:-1]), taken="")
    for path in (found.store, found.rocksdb):
        with MessageStore.open(path, Settings.dev()) as store:
            assert store.put(Message("orders", b"two shirts", keys=("order_1",), tags="paid")).ok
    (found.rocksdb / "consumequeue_rocksdb").mkdir()
    (found.rocksdb / "consumequeue_rocksdb" / "CURRENT").write_text("MANIFEST-000001\n")
    found.file.write_text("hello")
    found.garbage.write_bytes(b"\xff\x00: [")
    with MessageStore.open(found.owned, Settings.dev()), socket.create_server(("127.0.0.1", 0)) as taken:
        yield found._replace(taken=f"127.0.0.1:{taken.getsockname()[1]}")


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("Spark was started before the mistake was noticed")

    monkeypatch.setattr("penstock.pipeline.session.start_session", refuse)


Typed = Callable[[Place], list[object]]
MISTAKES: dict[str, tuple[Typed, str, str]] = {
    # what is typed, what the sentence must name, and what it must tell to do
    "a store that is not there": (
        lambda p: ["store", "info", p.missing],
        "missing: there is no store",
        "check the path",
    ),
    "a file for a store": (
        lambda p: ["store", "verify", p.file],
        "file: there is no store here",
        "a store is a folder",
    ),
    "a folder of stores": (lambda p: ["store", "dump", p.store.parent], "mistakes", "name one of them"),
    "a folder without a store": (lambda p: ["store", "dump", p.store / "commitlog"], "commitlog", "check the path"),
    "a port that is taken": (
        lambda p: ["serve", "--store", p.missing, "--profile", "dev", "--listen", p.taken, "--console", "off"],
        "cannot listen at 127.0.0.1:",
        "choose another address, or stop the process that uses it",
    ),
    "no port at all": (lambda p: ["serve", "--listen", "here"], "--listen is 'here'", "it must be HOST:PORT"),
    "a store that a broker owns, to serve": (
        lambda p: ["serve", "--store", p.owned, "--listen", "127.0.0.1:0", "--namesrv", "off", "--console", "off"],
        "owned: the store is in use by another process",
        "stop it, or read with",
    ),
    "a store that a broker owns, to repair": (lambda p: ["store", "repair", p.owned], "owned: the store is ", "first"),
    "queues in RocksDB": (
        lambda p: ["serve", "--store", p.rocksdb, "--listen", "127.0.0.1:0", "--namesrv", "off", "--console", "off"],
        "rocksdb/consumequeue_rocksdb: RocketMQ 5 keeps",
        "move this folder elsewhere",
    ),
    "a setting that nobody knows": (
        lambda p: ["store", "info", p.store, "--set", "flushDiskTyp=SYNC_FLUSH"],
        "unknown setting 'flushDiskTyp'",
        "did you mean 'flushDiskType'?",
    ),
    "a value that a setting cannot have": (
        lambda p: ["store", "info", p.store, "--set", "flushDiskType=SOMETIMES"],
        "setting flushDiskType is 'SOMETIMES'",
        "it must be ",
    ),
    "a number that is none": (
        lambda p: ["store", "info", p.store, "--set", "maxMessageSize=big"],
        "setting maxMessageSize is 'big'",
        "it must be a whole number",
    ),
    "a setting without a value": (lambda p: ["store", "info", p.store, "--set", "x"], "'x' is not", "write name=value"),
    "a broker.conf that is not there": (
        lambda p: ["store", "info", p.store, "--config", p.missing],
        "missing: cannot read the settings",
        "check the path",
    ),
    "a broker.conf that is a folder": (
        lambda p: ["store", "info", p.store, "--config", p.store],
        "store: cannot read the settings",
        "check the path",
    ),
    "a queue that is no number": (
        lambda p: ["store", "get", p.store, "--topic", "orders", "--queue", "first", "--offset", "0"],
        "--queue: ",
        "see `penstock store get --help`",
    ),
    "an option that is missing": (
        lambda p: ["store", "query", p.store, "--topic", "orders"],
        "Missing option '--key'",
        "see `penstock store query --help`",
    ),
    "a verb that is misspelt": (lambda p: ["store", "verfy", p.store], "'verfy'", "see `penstock store --help`"),
    "a name server that is not there": (
        lambda p: ["topic", "list", "-n", "127.0.0.1:1"],
        "Cannot reach name server 127.0.0.1:1",
        "Is it running?",
    ),
    "a broker that is not there": (
        lambda p: ["cluster", "status", "-b", "127.0.0.1:1"],
        "cannot connect to 127.0.0.1:1",
        "check the address",
    ),
    "a name server without a port": (lambda p: ["topic", "list", "-n", "here"], "'here'", "HOST:PORT"),
    "a time that is none": (
        lambda p: ["offset", "reset", "-g", "g", "-t", "t", "-s", "yesterday", "-n", "127.0.0.1:1"],
        "not a valid time: 'yesterday'",
        "write now, now-1h, milliseconds,",
    ),
    "an account that is not there": (
        lambda p: ["topic", "list", "-n", "127.0.0.1:1", "--account", p.missing],
        "missing: the account cannot be read",
        "check --account",
    ),
    "an account that is no text": (
        lambda p: ["topic", "list", "-n", "127.0.0.1:1", "--account", p.garbage],
        "garbage: the account cannot be read",
        "check --account",
    ),
    "a console's token that is too short": (
        lambda p: ["console", "--namesrv", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--token", "x"],
        "the console's token",
        "must be",
    ),
    "a demo in a folder with something in it": (
        lambda p: ["demo", "--without-spark", "--keep", p.store],
        "store: ",
        "name one that is empty",
    ),
    "a job without a place": (lambda p: ["pipeline", "usage"], "no store is given", "name it with --store DIR"),
    "a job on a store that is not there": (
        lambda p: ["pipeline", "usage", "--store", p.missing],
        "missing: there is no store",
        "check the path",
    ),
    "a job on a pattern without a match": (
        lambda p: ["pipeline", "verify", "--store", f"{p.missing}/*"],
        "missing/*' matches no folder",
        "check the path",
    ),
    "a setting of Spark without a value": (
        lambda p: ["pipeline", "usage", "--store", p.store, "--conf", "spark.executor.memory"],
        "--conf 'spark.executor.memory'",
        "it must be NAME=VALUE",
    ),
    "a search for nothing": (lambda p: ["pipeline", "search", "--store", p.store], "nothing to search for", "--key"),
    "a wrong regular expression": (
        lambda p: ["pipeline", "search", "--store", p.store, "--regex", "order("],
        "--regex 'order('",
        "it must be a regular expression",
    ),
    "a wrong path into JSON": (
        lambda p: ["pipeline", "search", "--store", p.store, "--json-path", "order.id"],
        "--json-path 'order.id'",
        "it must be NAME=VALUE",
    ),
    "a search that ends before it begins": (
        lambda p: ["pipeline", "search", "--store", p.store, "--since", "2026-11-16", "--until", "2026-11-15"],
        "ends before it begins",
        "--until must be later than --since",
    ),
    "a time of a job that is none": (
        lambda p: ["pipeline", "search", "--store", p.store, "--since", "yesterday"],
        "--since: not a valid time: 'yesterday'",
        "it must be like",
    ),
    "a way to count that there is not": (
        lambda p: ["pipeline", "usage", "--store", p.store, "--by", "colour"],
        "--by 'colour'",
        "it must be one of",
    ),
    "two kinds of output": (
        lambda p: ["pipeline", "usage", "--store", p.store, "--json", "--csv"],
        "--json and --csv",
        "give one of them",
    ),
    "a page of charts that is a folder": (
        lambda p: ["pipeline", "usage", "--store", p.store, "--html", p.store],
        "store: that is a directory",
        "name a file",
    ),
    "a page of charts in a folder that is not there": (
        lambda p: ["store", "usage", p.store, "--html", p.missing / "usage.html"],
        "there is no directory",
        "name a file in an existing directory",
    ),
    "a search in a topic that is not there": (
        lambda p: ["pipeline", "search", "--store", p.store, "--topic", "oders", "--key", "order_1"],
        "there is no topic 'oders'",
        "it has orders",
    ),
    "a search in a cluster that is not there": (
        lambda p: ["pipeline", "search", "--namesrv", "127.0.0.1:1", "--topic", "orders", "--key", "order_1"],
        "Cannot reach name server 127.0.0.1:1",
        "Is it running?",
    ),
    "the groups of a cluster that is not there": (
        lambda p: ["pipeline", "lag", "--namesrv", "127.0.0.1:1"],
        "Cannot reach name server 127.0.0.1:1",
        "Is it running?",
    ),
    "an export from a cluster that is not there": (
        lambda p: ["pipeline", "export", "--namesrv", "127.0.0.1:1", "--to", p.missing],
        "Cannot reach name server 127.0.0.1:1",
        "Is it running?",
    ),
    "an export of a topic that is not there": (
        lambda p: ["pipeline", "export", "--store", p.store, "--topic", "oders", "--to", p.missing],
        "there is no topic 'oders'",
        "it has orders",
    ),
    "an export into the store itself": (
        lambda p: ["pipeline", "export", "--store", p.store, "--to", p.store / "export"],
        "that is inside the store",
        "export to a folder elsewhere",
    ),
    "a schema without a way to decode": (
        lambda p: ["pipeline", "export", "--store", p.store, "--to", p.missing, "--schema", p.file],
        "--schema and --message",
        "give --decode KIND with them",
    ),
    "a replay into what it reads": (
        lambda p: ["pipeline", "replay", "--store", p.store, "--topic", "orders", "--to-store", p.store],
        "source and target are the same topic",
        "name another one with --to-topic",
    ),
    "a rate for a store": (
        lambda p: [
            "pipeline",
            "replay",
            "--store",
            p.store,
            "--topic",
            "orders",
            "--to-store",
            p.missing,
            "--rate",
            "10",
        ],
        "--rate",
        "applies to a cluster only",
    ),
    "a replay of an export that is none": (
        lambda p: ["pipeline", "replay", "--from", f"export:{p.store}", "--to-store", p.missing],
        "store: there is no export in this folder",
        "name the folder given to `penstock pipeline export --to`",
    ),
    "a comparison with a store that is not there": (
        lambda p: ["pipeline", "diff", p.store, p.missing],
        "missing: there is no store",
        "check the path",
    ),
    "a comparison with two things": (
        lambda p: ["pipeline", "diff", p.store, p.store, "--namesrv", "127.0.0.1:1"],
        "or with 127.0.0.1:1?",
        "Give one of them",
    ),
    "a rebuild into a file": (
        lambda p: ["pipeline", "rebuild", "--store", p.store, "--into", p.file],
        "file: that is a file",
        "it must be a directory",
    ),
    "a file for a lake": (
        lambda p: ["pipeline", "lake", "run", p.file],
        "file: it has no lake.yml",
        "create one with `penstock pipeline lake init`",
    ),
    "a format that there is not": (
        lambda p: ["pipeline", "export", "--store", p.store, "--to", p.missing, "--format", "xml"],
        "--format 'xml'",
        "it must be one of",
    ),
    "an export onto a file": (
        lambda p: ["pipeline", "export", "--store", p.store, "--to", p.file],
        "file: that is a file",
        "name a folder",
    ),
    "an export into somebody else's folder": (
        lambda p: ["pipeline", "export", "--store", p.store, "--to", p.store],
        "store: this folder holds something else",
        "export to a new one",
    ),
    "a replay of nothing": (
        lambda p: ["pipeline", "replay", "--store", p.store, "--to-store", p.missing],
        "replay what?",
        "Give one of --from export:DIR",
    ),
    "a comparison with nothing": (lambda p: ["pipeline", "diff", p.store], "compare with what?", "Give the directory"),
    "dispatch for a store that does it itself": (
        lambda p: ["pipeline", "dispatch", "--store", p.store],
        "store: this store builds its queues itself",
        "start it with dispatch=external first",
    ),
    "dispatch for a store that is not there": (
        lambda p: ["pipeline", "dispatch", "--store", p.missing],
        "missing: there is no store",
        "check the path",
    ),
    "dispatch once, and every three seconds": (
        lambda p: ["pipeline", "dispatch", "--store", p.store, "--once", "--trigger", "3"],
        "--trigger",
        "not together with --once",
    ),
    "a lake that is none": (
        lambda p: ["pipeline", "lake", "run", p.store],
        "store: it has no lake.yml",
        "create one with `penstock pipeline lake init`",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_typical_mistake_is_said_in_one_sentence(run: Run, place: Place, mistake: str) -> None:
    typed, named, advice = MISTAKES[mistake]
    words = typed(place)
    said = (run_as_process if words[0] in ("serve", "console") else run)(*words).refused()
    assert named in said
    assert advice in said
