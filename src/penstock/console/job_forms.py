"""The forms of jobs: which values a person may give to a verb, and the command-line options that they become.

Each value is passed as `--option=value`, so a value cannot become an option itself. The store is fixed when the console
starts; a viewer cannot choose another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Field:
    """One input of a form."""

    name: str
    label: str
    choices: tuple[str, ...] = ()
    repeats: bool = False
    """Whether each line of the value is a separate option."""
    is_switch: bool = False
    """Whether the option is a flag without a value."""


@dataclass(frozen=True, slots=True)
class JobForm:
    """The form of one verb."""

    verb: str
    title: str
    about: str
    fields: tuple[Field, ...] = ()
    extra: str = ""
    """The extra of Penstock that the verb needs even without Spark."""
    over_network: bool = False
    """Whether the job can also read from a cluster if the console has no store."""
    confirmation: str = ""
    """The question before a job that changes the store; empty for other jobs."""


_SINCE: Final = Field("since", "Stored at or after, e.g. 2026-11-16T08:00")
_UNTIL: Final = Field("until", "Stored before")
FORMS: Final = {
    form.verb: form
    for form in (
        JobForm("usage", "Usage", "Disk usage by topic, queue, tag, producer, day and hour.", extra="arrow"),
        JobForm("verify", "Verify", "Verifies every record, queue unit, key and config file. Read-only."),
        JobForm(
            "search",
            "Search",
            "Searches messages by content. All given conditions must match.",
            (
                Field("topic", "Topic"),
                Field("key", "Keys, one per line (any matches)", repeats=True),
                Field("id", "Message id"),
                Field("text", "Text in the body"),
                Field("regex", "Regular expression in the body"),
                Field("json-path", "JSON path, e.g. order.id=7, one per line", repeats=True),
                Field("property", "Properties, NAME=VALUE, one per line", repeats=True),
                Field("tag", "Tag"),
                _SINCE,
                _UNTIL,
                Field("limit", "Limit"),
            ),
            extra="arrow",
            over_network=True,
        ),
        JobForm(
            "export",
            "Export",
            "Writes messages to files by topic and day. The next run into the same folder adds only new messages.",
            (
                Field("topic", "Topics, one per line; empty for all", repeats=True),
                Field("format", "Format", choices=("parquet", "json")),
                Field("decode", "Decode bodies", choices=("text", "json")),
                _SINCE,
                Field("once", "Export once, not incrementally; the latter needs Spark", is_switch=True),
            ),
            extra="arrow",
            over_network=True,
        ),
        JobForm(
            "rebuild",
            "Rebuild",
            "Rebuilds queues and index from the log. The broker must be stopped; the old files go to quarantine.",
            (
                Field("topic", "Only this topic"),
                Field("queue", "Only this queue"),
                Field("dry-run", "Dry run", is_switch=True),
            ),
            confirmation="Replaces the store's queues and index once the new ones are complete and verified.",
        ),
    )
}
EXPORT_FOLDER: Final = "folder"
"""The form field with the name of an export's folder."""
ON_SPARK: Final = "on-spark"
"""The switch of every form that has the job run on Spark, whatever the size of the log."""
_FOLDER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MAX_LENGTH: Final = 4096


def arguments_of(verb: str, given: Mapping[str, str]) -> list[str]:
    """Returns the command-line options for the form values `given`. Raises BadRequest for an unknown verb or field, or
    an invalid value.
    """
    form = FORMS.get(verb)
    if form is None:
        raise BadRequest(f"unknown job {verb[:40]!r}; known jobs: {', '.join(FORMS)}")
    fields = {field.name: field for field in form.fields}
    arguments = []
    for name, value in given.items():
        if name not in fields:
            raise BadRequest(f"job {verb} has no field {name[:40]!r}; its fields: {', '.join(fields) or 'none'}")
        if len(value) > _MAX_LENGTH or "\0" in value:
            raise BadRequest(f"{name} is too long, or not text")
        field = fields[name]
        if field.choices and value not in field.choices:
            raise BadRequest(f"{name} must be one of {', '.join(field.choices)}, not {value[:40]!r}")
        if field.is_switch:
            arguments += [f"--{name}"] if value == "true" else []
            continue
        parts = value.splitlines() if field.repeats else [value.strip()]
        arguments += [f"--{name}={part}" for part in parts if part.strip()]
    return arguments


def folder_of(exports: Path | None, name: str) -> Path:
    """Returns the folder of the export `name`. Raises BadRequest for an invalid name, or if the console has no export
    folder.
    """
    if exports is None:
        raise BadRequest("no folder for exports; start the console with --exports DIR")
    if _FOLDER.fullmatch(name) is None:
        raise BadRequest(f"the folder's name must be letters, digits, '_' and '-', not {name[:40]!r}")
    return exports / name
