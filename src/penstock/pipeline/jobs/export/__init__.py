"""Messages as files for others: Parquet, JSON lines, a Delta table or an Iceberg table, by topic and day.

An export goes on where the last run ended, by a checkpoint in the target's folder, and no message is missing or
doubled, whatever was killed when:

1. Spark writes the files of a micro-batch into `_penstock/staged/`.
2. A note names them and where they belong (`_penstock/batches/`). A batch that has a note is never written again.
3. They are moved to their places, and committed to the table together with the batch's number.

What could not be read or decoded is kept aside under `_bad/`, with the reason.
"""

from penstock.pipeline.jobs.export.job import Exported, export
from penstock.pipeline.jobs.export.spec import FORMATS, Export

__all__ = ["FORMATS", "Export", "Exported", "export"]
