"""A lake: a project for Spark Declarative Pipelines that turns messages into tables, a little more with each run.

`project` is the folder and its settings, `tables` what the project's own files call to say what a table holds, and
`run` brings all tables up to date. The tables' catalog is an embedded database in the project's folder, which one
process at a time may open.
"""

from penstock.pipeline.lake.project import Lake, LakeTable, init_project
from penstock.pipeline.lake.run import Summary, run_project

__all__ = ["Lake", "LakeTable", "Summary", "init_project", "run_project"]
