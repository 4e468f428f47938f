"""Options that several verbs share, and how a verb gets them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, get_args

import typer
from typer.core import TyperGroup, TyperOption
from typer.models import OptionInfo

from penstock.cli.output import write

LONG_MAX: Final = 2**63 - 1


def option(name: str, metavar: str, meaning: str) -> Any:
    """Returns an option with a text value."""
    return typer.Option(name, metavar=metavar, help=meaning, show_default=False)


def number(name: str, metavar: str, meaning: str, *, low: int = -LONG_MAX, default: bool = False) -> Any:
    """Returns an option with an integer value, at least `low` and at most the largest signed 64-bit integer."""

    def check(value: int | None) -> int | None:
        if value is not None and not low <= value <= LONG_MAX:
            allowed = f"from {low} on" if value < low else f"at most {LONG_MAX}"
            raise typer.BadParameter(f"{value} is out of range, it must be {allowed}")
        return value

    return typer.Option(name, metavar=metavar, callback=check, help=meaning, show_default=default)


Folder: TypeAlias = Annotated[Path, typer.Argument(metavar="DIR", help="The store's directory.", show_default=False)]
Config: TypeAlias = Annotated[Path | None, option("--config", "FILE", "Read settings from this broker.conf.")]
Pairs: TypeAlias = Annotated[
    list[str] | None,
    option("--set", "NAME=VALUE", "A setting by RocketMQ's name; repeatable, overrides --config."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Print what would be done; change nothing.")]
NoBody: TypeAlias = Annotated[bool, typer.Option("--no-body", help="Omit the bodies.")]
Topic: TypeAlias = Annotated[str, option("--topic", "T", "The topic.")]
QueueId: TypeAlias = Annotated[int, number("--queue", "N", "The queue's id.")]


class Name(NamedTuple):
    """Marks an option whose value may also be given by position. `metavar` is its name in the help, such as TOPIC."""

    metavar: str


class VerbGroup(TyperGroup):
    """A group of verbs. Its `--help` is False where it is not given, instead of None: to check a None, Typer imports
    pydantic, which takes longer than everything else that the help of a verb needs.
    """

    def get_help_option(self, ctx: Any) -> TyperOption | None:
        found = super().get_help_option(ctx)
        if found is not None:
            found.default = False
        return found


def help_if_alone(context: typer.Context) -> None:
    """Prints a group's help if it is called without a verb."""
    if context.invoked_subcommand is None:
        write(f"{context.get_help()}\n")


CommonOption: TypeAlias = tuple[str, Any, Any]
"""(parameter name, annotation, default value)"""


def with_common_options(
    verb: Callable[..., Any],
    common: Sequence[CommonOption],
    invoke: Callable[[dict[str, Any], dict[str, Any]], None],
) -> Callable[..., None]:
    """Turns the verb into a command that has the verb's own options, then the common options.

    The verb's first parameter is its call object, not an option. `invoke` gets two dictionaries: the values of the
    common options, and the values of the verb's own options. An option marked with `Name` can be given by position as
    well: arguments fill, in their order, the marked options that were not given by name.
    """
    own = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
    ]
    names = {each.name: each for each in own if _name_of(each) is not None}

    @functools.wraps(verb)
    def command(**options: Any) -> None:
        shared = {name: options.pop(name) for name, _, _ in common}
        given = [value for name in names if (value := options.pop(_argument(name))) is not None]
        _fill_names(names, options, given)
        invoke(shared, options)

    arguments = [
        inspect.Parameter(
            _argument(each.name),
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Argument(
                    metavar=mark.metavar,
                    show_default=False,
                    help=_option_of(each).help,
                    autocompletion=_option_of(each).autocompletion,
                ),
            ],
        )
        for each in names.values()
        if (mark := _name_of(each)) is not None
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default in common
    ]
    parameters = [*arguments, *(_optional(each) if each.name in names else each for each in own), *added]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _argument(name: str) -> str:
    return f"{name}_by_position"


def _name_of(parameter: inspect.Parameter) -> Name | None:
    return next((each for each in getattr(parameter.annotation, "__metadata__", ()) if isinstance(each, Name)), None)


def _optional(parameter: inspect.Parameter) -> inspect.Parameter:
    """Returns the parameter as one that may be missing, because its value may come by position."""
    kind, *metadata = get_args(parameter.annotation)
    annotated: Any = Annotated
    marked = annotated[(kind | None, *(each for each in metadata if not isinstance(each, Name)))]
    return parameter.replace(annotation=marked, default=None)


def _option_of(parameter: inspect.Parameter) -> OptionInfo:
    return next(each for each in parameter.annotation.__metadata__ if isinstance(each, OptionInfo))


def _fill_names(names: Mapping[str, inspect.Parameter], options: dict[str, Any], given: list[str]) -> None:
    """Puts the values that were given by position into the options that were not. Raises BadParameter if there are too
    many, or too few.
    """
    for name, parameter in names.items():
        if options[name] is not None:
            continue
        if given:
            options[name] = given.pop(0)
        elif parameter.default is inspect.Parameter.empty:
            mark = _name_of(parameter)
            assert mark is not None
            info = _option_of(parameter)  # Typer keeps the first name as `default`
            long = next(each for each in (info.default, *(info.param_decls or ())) if str(each).startswith("--"))
            raise typer.BadParameter(f"{mark.metavar} is missing; give it as an argument, or with {long}")
        else:
            options[name] = parameter.default
    if given:
        raise typer.BadParameter(f"'{given[0]}' is one name too many; see the usage")
