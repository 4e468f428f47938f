"""`penstock sql`: output, formats, files, the prompt, notes and sentences."""

from __future__ import annotations

import csv
import io
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli.conftest import ENVIRONMENT, PENSTOCK, hear_interrupts, run_as_process
from support.stores import eventually

pytest.importorskip("duckdb", reason="these tests need the extra `sql`")

if TYPE_CHECKING:
    from cli.conftest import Filled, Run

BY_TOPIC = "SELECT topic, count(*) AS n FROM log GROUP BY topic ORDER BY topic"


def test_a_table_is_printed(run: Run, filled: Filled) -> None:
    ended = run("sql", filled.path, "SELECT tags, body_text FROM orders WHERE body_text = 'zero'").done()
    assert [line.split() for line in ended.out.splitlines()] == [["tags", "body_text"], ["paid", "zero"]]


def test_json_lines_and_csv_hold_all_types(run: Run, filled: Filled) -> None:
    query = "SELECT topic, queue_id, body, keys, properties, store_timestamp FROM orders WHERE body_text = 'zero'"
    (row,) = run("sql", filled.path, query, "--format", "jsonl").done().objects
    assert (row["topic"], row["queue_id"], row["body"], row["keys"]) == ("orders", 0, "emVybw==", ["order_0", "all"])
    assert row["properties"]["TAGS"] == "paid"
    assert re.fullmatch(r"2020-09-13T12:26:4\d\.\d{3}Z", row["store_timestamp"])
    out = run("sql", filled.path, query, "--format", "csv").done().out
    header, cells = csv.reader(io.StringIO(out))
    assert header == list(row)
    assert cells[:4] == ["orders", "0", "emVybw==", '["order_0", "all"]']


def test_columns_of_one_name_are_all_shown(run: Run, filled: Filled) -> None:
    query = "SELECT 1 AS n, 2 AS n, 3 AS n_1, 4 AS n"
    out = run("sql", filled.path, query).done().out
    assert [line.split() for line in out.splitlines()] == [["n", "n_2", "n_1", "n_3"], ["1", "2", "3", "4"]]
    assert run("sql", filled.path, query, "--format", "csv").done().out == "n,n_2,n_1,n_3\n1,2,3,4\n"
    (row,) = run("sql", filled.path, query, "--format", "jsonl").done().objects
    assert row == {"n": 1, "n_2": 2, "n_1": 3, "n_3": 4}


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out.parquet"])
def test_the_rows_of_a_file_are_counted_and_not_its_lines(run: Run, filled: Filled, tmp_path: Path, name: str) -> None:
    query = "SELECT 'two' || chr(10) || 'lines' AS text FROM range(3)"
    ended = run("sql", filled.path, query, "--output", tmp_path / name).done()
    assert re.search(r"\b3 rows in ", ended.err)


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out.parquet"])
def test_a_file_gets_the_rows_in_the_format_of_its_name(run: Run, filled: Filled, tmp_path: Path, name: str) -> None:
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    path = tmp_path / name
    ended = run("sql", filled.path, BY_TOPIC, "--output", path).done()
    assert ended.out == ""
    read = {
        ".csv": pyarrow.csv.read_csv,
        ".jsonl": pyarrow.json.read_json,
        ".parquet": pyarrow.parquet.read_table,
    }[path.suffix]
    assert read(path).to_pylist() == [
        {"topic": row["topic"], "n": row["n"]}
        for row in run("sql", filled.path, BY_TOPIC, "--format", "jsonl").done().objects
    ]
    assert list(tmp_path.glob(".*")) == []
    assert "the file exists" in run("sql", filled.path, BY_TOPIC, "--output", path).refused()


def test_times_limit_what_is_read(run: Run, filled: Filled) -> None:
    query = "SELECT count(*) AS n FROM log"
    assert run("sql", filled.path, query, "--since", "now-1h", "--format", "csv").done().out == "n\n0\n"
    everything = run("sql", filled.path, query, "--until", "now", "--format", "csv").done().out
    assert int(everything.split()[1]) > 5


def test_mistakes_are_sentences(run: Run, filled: Filled, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, said in (
        ((filled.path, "SELECT * FROM ordres"), "there is no topic 'ordres'; did you mean 'orders'?"),
        ((filled.path, "SELECT * FORM orders"), 'line 1, column 15: syntax error at or near "orders".'),
        ((tmp_path / "nowhere", "SELECT 1"), "no such folder"),
        ((tmp_path / "empty", "SELECT 1"), "there is no store here"),
        (
            (filled.path, "SELECT 1", "--format", "cvs"),
            "--format 'cvs': it must be one of table, csv, jsonl, parquet; did you mean csv?",
        ),
        ((filled.path, "SELECT 1", "--format", "parquet"), "give it with --output"),
        ((filled.path, "SELECT 1", "--since", "soon"), "--since: not a valid time: 'soon'"),
        ((filled.path, "SELECT * FROM read_text('/etc/passwd')"), "--allow-files lets a query use files."),
    ):
        assert said in run("sql", *arguments).refused()


def test_only_the_first_rows_of_a_long_table_are_shown(run: Run, filled: Filled) -> None:
    ended = run("sql", filled.path, "SELECT * FROM range(5000)").done()
    assert len(ended.out.splitlines()) == 1001
    assert "these are the first 1000 rows" in ended.err


def test_damage_is_said(run: Run, filled: Filled) -> None:
    path = next((filled.path / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[data.index(b"zero")] ^= 1
    path.write_bytes(data)
    ended = run("sql", filled.path, "SELECT body FROM log").done()
    assert "1 damaged place without rows here" in ended.err
    assert "penstock verify" in ended.err


def test_a_query_of_a_program_of_its_own_imports_no_pandas(filled: Filled) -> None:
    ended = run_as_process("sql", filled.path, BY_TOPIC, "--format", "csv").done()
    assert ended.out.startswith("topic,n\n")
    assert ended.err == ""


def test_the_prompt_reads_queries_and_commands(filled: Filled) -> None:
    typed = "\\d\n\\d queues\nSELECT count(*) AS n\nFROM orders;\nSELECT * FROM ordres;\nSELECT 7 AS seven;\n\\x\n\\q\n"
    ended = subprocess.run(
        [*PENSTOCK, "sql", str(filled.path)], input=typed, capture_output=True, text=True, timeout=60, env=ENVIRONMENT,
        check=True,
    )  # fmt: skip
    assert "orders" in ended.stdout
    assert "max_offset" in ended.stdout
    assert "seven" in ended.stdout
    assert "did you mean 'orders'?" in ended.stderr
    assert "there is no command \\x" in ended.stderr


def test_the_prompt_completes_names(filled: Filled) -> None:
    from penstock.cli.sql_prompt import completer
    from penstock.pipeline.arrow_scan import ScanOptions
    from penstock.sql.views import Views

    complete = completer(Views(ScanOptions(paths=(str(filled.path),))))
    assert complete("ord", 0) == "orders"
    assert complete("body_j", 0) == "body_json"
    assert complete("SEL", 0) == "SELECT"
    assert complete("body_j", 1) is None


def cpu_ticks(process: subprocess.Popen[str]) -> int:
    """What a process has computed so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_an_interrupt_ends_a_query_at_once(filled: Filled, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    query = "SELECT count(*) FROM range(100000000) a, range(100000000) b, orders WHERE a.range + b.range = queue_id"
    process = subprocess.Popen(
        [*PENSTOCK, "sql", str(filled.path), query],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "TMPDIR": str(temporary)},
        preexec_fn=hear_interrupts,
    )
    try:
        eventually(lambda: bool(list(temporary.iterdir())), "the session did not begin")
        begun = cpu_ticks(process)
        eventually(lambda: cpu_ticks(process) > begun + 100, "the query did not begin")  # a second: it never ends
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert list(temporary.iterdir()) == []
    finally:
        process.kill()
        process.communicate()
