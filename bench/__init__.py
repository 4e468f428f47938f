"""What is measured, and how: `python -m bench`, from the project's folder.

    harness     rounds in turns, medians and spread, whether a goal is met
    run         one suite from the disk check to the report
    report      the report, which is the JSON file; tables of it, for terminals and for the documents
    machine     what the figures were measured on
    workspace   the temporary folder, and that nothing of it stays
    java        Apache RocketMQ's store, the peer
    store/      the suite `store`, one file per kind of row
    broker/     the suite `broker`: the load generator, the two brokers, the rows
    replication/  the suite `replication`: a master and a slave beside Java's
    spark/      the suite `spark`: the source beside ready-made batches, Parquet and a broker
    pipeline/   the suite `pipeline`: jobs on Spark, pinned to one core and to two

The program around Apache RocketMQ's store is the one of the interchange tests, so `tests/` is made importable here.
"""

import sys
from pathlib import Path

PROJECT = Path(__file__).parent.parent
sys.path.append(str(PROJECT / "tests"))
