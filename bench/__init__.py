"""What is measured, and how: `python -m bench`, from the project's folder.

    run          rows, tasks and sides in tables; rounds in turns; medians, spread and CPU time
    report       the report, which is the JSON file; the machine; the table for a terminal; runs kept in `results/`
    tables       the tables of the documents, from the kept runs
    goals        the rows of the project's goals
    workspace    the temporary folder of a run
    processes    brokers of both sides, and Java's store, as processes
    load         the load generator
    pinned       processes with a Spark session on a number of cores
    store, recovery, broker, producer, replication, failover, spark, pipeline, pipeline.dispatch, console, queues
                 the suites
    compare      CPU time of two source trees, before and after a change; `turn` is one turn of it

A new suite is a class as `run.Suite` says, with an entry in `SUITES` of `__main__`; rounds, order of the sides, CPU
time of process trees, spread, machine, JSON and tables come from `run`, `report` and `tables`. Rows of the goals are
named in `goals`.

The Java program and a few helpers are those of the tests, so `tests/` is added to the import path. `NOTES.md` is the
lab book: every attempt, with its figures.
"""

import sys
from pathlib import Path

PROJECT = Path(__file__).parent.parent
sys.path.append(str(PROJECT / "tests"))
