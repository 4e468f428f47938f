"""What Spark's processes print becomes lines of the log, apart from what is no error."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
from support.stores import eventually

from penstock.cli.spark_output import spark_output_as_log, without_lost_readers

SAID = """WARNING: Using incubator modules
Traceback (most recent call last):
  File "daemon.py", line 264, in manager
BrokenPipeError: [Errno 32] Broken pipe
Traceback (most recent call last):
  File "worker.py", line 1, in main
ValueError: kept
PySpark daemon failed to flush the output to the worker process:

the end
"""


def test_only_the_errors_of_workers_that_spark_has_let_go_are_dropped() -> None:
    kept = list(without_lost_readers(SAID.splitlines(keepends=True)))
    assert [line for line in kept if not line.startswith(" ")] == [
        "WARNING: Using incubator modules",
        "Traceback (most recent call last):",
        "ValueError: kept",
        "the end",
    ]


def test_processes_of_the_block_write_to_the_log_and_later_ones_to_stderr(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    command = [sys.executable, "-c", "import sys; sys.stdin.read(); print('from Java', file=sys.stderr)"]
    with spark_output_as_log(logging.getLogger("penstock.pipeline")):
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
    process.communicate(timeout=60)
    eventually(lambda: "Spark: from Java" in caplog.messages, "the line is logged")
    os.write(2, b"our own\n")
    assert capfd.readouterr().err.endswith("our own\n")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_log_that_fails_does_not_stop_spark() -> None:
    class Failing(logging.Logger):
        def info(self, *arguments: object, **options: object) -> None:
            raise RuntimeError("the disk of the log is full")

    with spark_output_as_log(Failing("failing")):
        process = subprocess.Popen(
            [sys.executable, "-c", "import os\nfor _ in range(200_000):\n  os.write(2, b'line\\n')"],
        )
    assert process.wait(60) != 0, "it met a closed pipe, and did not wait for a reader"
