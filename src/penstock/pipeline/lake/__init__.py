"""A lake: a Spark Declarative Pipelines project that turns messages into tables. Each run adds the new messages.

`project` creates and reads the project's folder. `tables` has the functions that the project's own files call. `run`
brings all tables up to date. The catalog is an embedded database in the project's folder. Only one process at a time
can open it.
"""

from penstock.pipeline.lake.lake_folder import Lake, LakeTable, init_project
from penstock.pipeline.lake.run import Summary, run_project

__all__ = ["Lake", "LakeTable", "Summary", "init_project", "run_project"]
