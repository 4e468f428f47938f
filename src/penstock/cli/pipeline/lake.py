"""`penstock pipeline lake`: messages as tables, updated incrementally by each run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import AsJson, Config, VerbGroup, help_if_alone, option
from penstock.cli.output import add_row, plain, show, table, write, write_json, write_note
from penstock.cli.verbs_on_spark import Confs, Master, MaybeNamesrv, interruptible, job_input, parse_confs

app = typer.Typer(cls=VerbGroup, rich_markup_mode=None)

Project = Annotated[Path, typer.Argument(metavar="DIR", help="The lake's directory.", show_default=False)]
Store = Annotated[str | None, option("--store", "STORE", "The directory of the store to read.")]
Decode = Annotated[str, option("--decode", "WHAT", "Body format: json, text or none; lake.yml sets it per topic.")]
Again = Annotated[bool, typer.Option("--full-refresh", help="Start over: recreate all tables.")]


@app.callback(invoke_without_command=True)
def lake(context: typer.Context) -> None:
    """Messages as tables: a project for Spark Declarative Pipelines.

    A streaming table of all messages, one per topic with decoded bodies, one of messages that did not decode, and views
    of usage, latency and lag. Each run adds the messages stored since the last one.

    Examples:

    \b
      penstock pipeline lake init shop-lake --store data/store --decode json
      penstock pipeline lake run shop-lake
    """
    help_if_alone(context)


@app.command()
def init(
    folder: Project,
    store: Store = None,
    namesrv: MaybeNamesrv = "",
    decode: Decode = "none",
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Create a project in a new directory, with a table for each existing topic.

    Exit status 0: done; 2: could not run.

    Examples:

    \b
      penstock pipeline lake init shop-lake --store data/store --decode json
      penstock pipeline lake init shop-lake --namesrv 127.0.0.1:9876
    """
    from penstock.pipeline.lake import init_project

    project = init_project(folder, job_input([store] if store else None, namesrv, config), decode)
    if as_json:
        write_json({"path": project.folder, "tables": {each.table: each.topic for each in project.topics}})
        return
    grid = table("Tables of topics", "table", "topic", "decode")
    for each in project.topics:
        add_row(grid, each.table, each.topic, each.decode)
    show(grid)
    name = plain(str(folder))
    write(f"{name}/lake.yml defines the tables; `penstock pipeline lake run {name}` fills them.\n")
    if not project.topics:
        write_note(f"there is no topic yet, so no topic has a table: add topics to {folder}/lake.yml later")


@app.command()
def run(
    folder: Project, full_refresh: Again = False, as_json: AsJson = False, master: Master = None, conf: Confs = None
) -> None:
    """Add the messages stored since the last run, and refresh the views.

    Exit status 0: done, even if messages did not decode; 2: could not run.

    Examples:

    \b
      penstock pipeline lake run shop-lake
      penstock pipeline lake run shop-lake --conf spark.driver.memory=4g --json
    """
    from penstock.pipeline.lake import run_project

    with interruptible("lake"):
        done = run_project(folder, master, parse_confs(conf), full_refresh=full_refresh, report=write_note)
    if as_json:
        write_json({"tables": done.tables, "without_table": done.without_table})
        return
    grid = table("Tables", "table", "rows", right=("rows",))
    for name, rows in done.tables.items():
        add_row(grid, name, rows)
    show(grid)
    if done.tables["bad_messages"]:
        write_note(f"{done.tables['bad_messages']} messages could not be read or decoded: see the table bad_messages")
    if done.without_table:
        write_note(f"topics without a table: {', '.join(done.without_table)}; add them to {folder}/lake.yml")
