"""Which jobs of the pipeline people can start here, with what, and the options that this comes to.

A value is always joined to its option by `=`, so that no value can be taken for an option of its own. Where the
messages are is said when the console is started, never by whoever starts a job.
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
    """One thing that a person may fill in."""

    name: str
    label: str
    choices: tuple[str, ...] = ()
    repeats: bool = False
    """Whether several, one a line, are several options."""
    is_switch: bool = False
    """Whether it is there or not, without a value."""


@dataclass(frozen=True, slots=True)
class JobForm:
    """One verb of `penstock pipeline`."""

    verb: str
    title: str
    about: str
    fields: tuple[Field, ...] = ()
    over_network: bool = False
    """Whether it can also read from a cluster, where there is no store on this machine."""
    asks: str = ""
    """What a person is asked before it starts, of one that changes the store."""


_SINCE: Final = Field("since", "Stored at or after, such as 2026-11-16T08:00")
_UNTIL: Final = Field("until", "Stored before")

FORMS: Final = {
    form.verb: form
    for form in (
        JobForm("usage", "Usage", "Who fills the disk: by topic, queue, tag, producer, day and hour."),
        JobForm("verify", "Verify", "Checks every record, queue unit, key and config file. Changes nothing."),
        JobForm(
            "search",
            "Search",
            "Finds messages by what they hold. All that is given must hold.",
            (
                Field("topic", "Topic"),
                Field("key", "Keys, one a line: any of them", repeats=True),
                Field("id", "Message id"),
                Field("text", "Text in the body"),
                Field("regex", "Regular expression in the body"),
                Field("json-path", "JSON, such as order.id=7, one a line", repeats=True),
                Field("property", "Properties, NAME=VALUE, one a line", repeats=True),
                Field("tag", "Tag"),
                _SINCE,
                _UNTIL,
                Field("limit", "Most to show"),
            ),
            over_network=True,
        ),
        JobForm(
            "export",
            "Export",
            "Writes messages to files by topic and day; the next time into the same folder, what came since.",
            (
                Field("topic", "Topics, one a line; all if there is none", repeats=True),
                Field("format", "Format", choices=("parquet", "json")),
                Field("decode", "Decode bodies", choices=("text", "json")),
                _SINCE,
                Field("once", "What is there now, once", is_switch=True),
            ),
            over_network=True,
        ),
        JobForm(
            "rebuild",
            "Rebuild",
            "Builds queues and index anew from the log. The broker must not run; the old ones are kept aside.",
            (
                Field("topic", "Only this topic"),
                Field("queue", "Only this queue"),
                Field("dry-run", "Only say what would be done", is_switch=True),
            ),
            asks="Queues and index of the store are replaced when the new ones are complete and checked.",
        ),
    )
}
EXPORT_FOLDER: Final = "folder"
"""The field of an export that names its folder, among all exports."""
_FOLDER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_LONGEST: Final = 4096


def arguments_of(verb: str, given: Mapping[str, str]) -> list[str]:
    """The options of a verb. Raises BadRequest for a verb or a field that is not one."""
    form = FORMS.get(verb)
    if form is None:
        raise BadRequest(f"there is no job {verb[:40]!r}; there are {', '.join(FORMS)}")
    fields = {field.name: field for field in form.fields}
    made = []
    for name, value in given.items():
        if name not in fields:
            raise BadRequest(f"job {verb} takes no {name[:40]!r}; it takes {', '.join(fields) or 'nothing'}")
        if len(value) > _LONGEST or "\0" in value:
            raise BadRequest(f"{name} is too long, or no text")
        field = fields[name]
        if field.choices and value not in field.choices:
            raise BadRequest(f"{name} is one of {', '.join(field.choices)}, not {value[:40]!r}")
        if field.is_switch:
            made += [f"--{name}"] if value == "true" else []
            continue
        parts = value.splitlines() if field.repeats else [value.strip()]
        made += [f"--{name}={part}" for part in parts if part.strip()]
    return made


def folder_of(exports: Path | None, name: str) -> Path:
    """Where an export goes: a folder of this name among the exports. Raises BadRequest."""
    if exports is None:
        raise BadRequest("exports have no place yet; start the console with --exports DIR")
    if _FOLDER.fullmatch(name) is None:
        raise BadRequest(f"the folder's name is letters, digits, '_' and '-', not {name[:40]!r}")
    return exports / name
