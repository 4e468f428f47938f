"""Exports messages as Parquet files, JSON lines, a Delta table or an Iceberg table, by topic and day.

An export resumes where the last run ended, by a checkpoint in the target folder. Exactly once, whatever is killed:

1. Spark writes the files of a micro-batch into `_penstock/staged/`.
2. An entry in the batch log (`_penstock/batches/`) names them and their targets. Such a batch is never written again.
3. They are moved to their targets, and committed to the table together with the batch's number.

Messages that cannot be read or decoded go to `_bad/`, with the reason.
"""

from penstock.pipeline.jobs.export.job import Exported, export
from penstock.pipeline.jobs.export.spec import FORMATS, Export

__all__ = ["FORMATS", "Export", "Exported", "export"]
