"""What is measured, and how: `python -m bench`, from the project's folder.

    run          rows, tasks and sides in tables; rounds in turns; medians, spread and CPU time
    report       the report, which is the JSON file; the machine; tables for terminals and for `NOTES.md`
    workspace    the temporary folder of a run
    processes    brokers of both sides, and Java's store, as processes
    load         the load generator
    pinned       processes with a Spark session on a number of cores
    store, recovery, broker, replication, spark, pipeline, console      the suites
    compare      CPU time of two source trees, before and after a change; `turn` is one turn of it

The Java program and a few helpers are those of the tests, so `tests/` is added to the import path. `NOTES.md` is the
lab book: every attempt and every figure.
"""

import sys
from pathlib import Path

PROJECT = Path(__file__).parent.parent
sys.path.append(str(PROJECT / "tests"))
