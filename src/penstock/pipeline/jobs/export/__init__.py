"""Exports messages as Parquet files, JSON lines, a Delta table or an Iceberg table, by topic and day.

A checkpoint in the target folder lets an export resume at the end of its last run. Every message is exported exactly
once, even if a run is killed:

1. Spark writes the files of a micro-batch into `_penstock/staged/`.
2. An entry in the batch log (`_penstock/batches/`) names these files and their targets. From then on, a replay of the
   batch writes no new files.
3. The files are moved to their targets, and committed to the table together with the batch's number.

Messages that cannot be read or decoded go to `_bad/`, with the reason.
"""

from penstock.pipeline.jobs.export.in_process import needs_spark
from penstock.pipeline.jobs.export.job import Exported, export, export_here
from penstock.pipeline.jobs.export.spec import FORMATS, Export

__all__ = ["FORMATS", "Export", "Exported", "export", "export_here", "needs_spark"]
