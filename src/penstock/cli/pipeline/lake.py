"""`penstock pipeline lake`: messages as tables, a little more with each run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import AsJson, Config, help_if_alone, option
from penstock.cli.output import add_row, plain, say, show, table, write, write_json
from penstock.cli.spark import Confs, Master, MaybeNamesrv, interruptible, parse_confs, place

app = typer.Typer(rich_markup_mode=None)

Project = Annotated[Path, typer.Argument(metavar="DIR", help="The lake's folder.", show_default=False)]
Store = Annotated[str | None, option("--store", "STORE", "The folder of the store it is made from.")]
Decode = Annotated[str, option("--decode", "WHAT", "What bodies are: json, text or none; lake.yml says it by topic.")]
Again = Annotated[bool, typer.Option("--full-refresh", help="Begin from nothing: all tables are made anew.")]


@app.callback(invoke_without_command=True)
def lake(context: typer.Context) -> None:
    """Messages as tables: a project for Spark Declarative Pipelines.

    A streaming table of all messages, one for each topic with its bodies decoded, one of what could not be, and views
    of usage, latency and lag. Each run takes in what has come since the last one.

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
    """Make a project in a new folder, with a table for each topic that is there.

    Exit status 0: done; 2: it could not be run.

    Examples:

    \b
      penstock pipeline lake init shop-lake --store data/store --decode json
      penstock pipeline lake init shop-lake --namesrv 127.0.0.1:9876
    """
    from penstock.pipeline.lake import init_project

    made = init_project(folder, place([store] if store else None, namesrv, config), decode)
    if as_json:
        write_json({"path": made.folder, "tables": {each.table: each.topic for each in made.topics}})
        return
    made_table = table("Tables of topics", "table", "topic", "decode")
    for each in made.topics:
        add_row(made_table, each.table, each.topic, each.decode)
    show(made_table)
    write(
        f"{plain(str(folder))}/lake.yml says what they are made of; `penstock pipeline lake run {plain(str(folder))}`"
    )
    write(" fills them.\n")
    if not made.topics:
        say(f"no topic is there yet, so none has a table: add them to {folder}/lake.yml when they come")


@app.command()
def run(
    folder: Project, full_refresh: Again = False, as_json: AsJson = False, master: Master = None, conf: Confs = None
) -> None:
    """Take in what has come since the last run, and compute the views anew.

    Exit status 0: done, perhaps with messages that could not be decoded; 2: it could not be run.

    Examples:

    \b
      penstock pipeline lake run shop-lake
      penstock pipeline lake run shop-lake --conf spark.driver.memory=4g --json
    """
    from penstock.pipeline.lake import run_project

    with interruptible("lake"):
        done = run_project(folder, master, parse_confs(conf), full_refresh=full_refresh, report=say)
    if as_json:
        write_json({"tables": done.tables, "without_table": done.without_table})
        return
    made = table("Tables", "table", "rows", right=("rows",))
    for name, rows in done.tables.items():
        add_row(made, name, rows)
    show(made)
    if done.tables["bad_messages"]:
        say(f"{done.tables['bad_messages']} messages could not be read or decoded: the table bad_messages says why")
    if done.without_table:
        say(f"without a table of their own: {', '.join(done.without_table)}; add them to {folder}/lake.yml")
