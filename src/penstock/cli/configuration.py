"""The configuration of `penstock serve`: the file it is read from, and where each value in force came from.

The file is the first of `places` that there is. Values come from, the last one wins: the defaults, the profile, the
file, `--set`, and options of the command line. `print_config` shows all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from penstock.broker import settings as broker_settings
from penstock.broker.settings import BrokerSettings
from penstock.cli.output import write, write_json
from penstock.config.java_properties import parse_properties
from penstock.config.setting_parser import SettingTable
from penstock.observation.administrators_log import is_secret
from penstock.store import Settings
from penstock.store import settings as store_settings

CONFIG_VARIABLE: Final = "PENSTOCK_CONFIG"
FILE_NAME: Final = "broker.conf"
DEFAULT: Final = "default"
GROWS: Final = "growLogFiles"
NO_FILE: Final = "no configuration file"
"""Why `penstock serve` has set growLogFiles, if it was not given."""
_SYSTEM: Final = Path("/etc/penstock")
_TABLES: Final[tuple[SettingTable, ...]] = (store_settings.TABLE, broker_settings.TABLE)


def places(environment: Mapping[str, str] | None = None) -> list[Path]:
    """Returns where a configuration file is looked for without `--config`, in this order: this folder, the user's
    configuration, the machine's.
    """
    variables = os.environ if environment is None else environment
    home = variables.get("XDG_CONFIG_HOME", "") or os.path.join(variables.get("HOME", ""), ".config")  # noqa: PTH118
    own = [Path(home) / "penstock"] if Path(home).is_absolute() else []
    return [folder / FILE_NAME for folder in (Path(), *own, _SYSTEM)]


def find_config(given: Path | None, environment: Mapping[str, str] | None = None) -> Path | None:
    """Returns the configuration file: `--config`, or the one that PENSTOCK_CONFIG names, or the first of `places` that
    is a file; None if there is none.
    """
    variables = os.environ if environment is None else environment
    if given is not None:
        return given
    if variables.get(CONFIG_VARIABLE):
        return Path(variables[CONFIG_VARIABLE])
    return next((place for place in places(variables) if place.is_file()), None)


class ShownSetting(NamedTuple):
    """A setting as it is in force. The value of a secret is hidden."""

    name: str
    value: str
    is_default: bool


def shown_settings(settings: Settings) -> Iterator[ShownSetting]:
    """Yields all settings of store and broker, sorted by name; then those of TLS that are given."""
    in_force = (settings, BrokerSettings.of(settings))
    defaults = (Settings(), BrokerSettings())
    found = {
        name: ShownSetting(name, _hidden(name, text), text == usual)
        for table, values, usually in zip(_TABLES, in_force, defaults, strict=True)
        for (name, text), usual in zip(table.texts(values).items(), table.texts(usually).values(), strict=True)
    }
    yield from (found[name] for name in sorted(found))
    for name, text in sorted(settings.broker.items()):
        if name.startswith("tls."):
            yield ShownSetting(name, _hidden(name, text), False)


def _hidden(name: str, text: str) -> str:
    return "***" if text and is_secret(name) else text


class ConfigSources(NamedTuple):
    """What a configuration was made from."""

    config: Path | None
    pairs: Sequence[str]
    is_dev: bool
    options: Mapping[str, str]
    """By the name of a setting: the option of the command line that changed it."""

    def of(self, settings: Iterable[ShownSetting]) -> dict[str, str]:
        """Returns where each value came from, by name."""
        lines = self._lines()
        given = {_name(pair.partition("=")[0].strip()) for pair in self.pairs}
        dev = {each.name for each in shown_settings(Settings.dev()) if not each.is_default} if self.is_dev else set()
        found = {}
        for setting in settings:
            name = setting.name
            if name in self.options:
                found[name] = self.options[name]
            elif name in given:
                found[name] = "--set"
            elif name in lines:
                found[name] = f"{self.config}:{lines[name]}"
            elif name in dev:
                found[name] = "--profile dev"
            elif name == GROWS and not setting.is_default:
                found[name] = NO_FILE
            else:
                found[name] = DEFAULT
        return found

    def _lines(self) -> dict[str, int]:
        if self.config is None:
            return {}
        return {_name(entry.name): entry.line for entry in parse_properties(self.config.read_bytes())}


def _name(name: str) -> str:
    """Returns the name of a setting for one of its aliases."""
    for table in _TABLES:
        if name in table.by_name:
            return table.by_name[name].name
    return name


def print_config(
    settings: Settings,
    sources: ConfigSources,
    addresses: Mapping[str, str],
    brokers: Sequence[Mapping[str, str]] = (),
    *,
    as_json: bool,
) -> None:
    """Prints the file, the addresses and all settings in force, each with where its value came from. `brokers` are the
    brokers of `--brokers`, by what differs between them.
    """
    shown = list(shown_settings(settings))
    origins = sources.of(shown)
    if as_json:
        rows = [{"name": each.name, "value": each.value, "from": origins[each.name]} for each in shown]
        file = None if sources.config is None else str(sources.config)
        several = {"brokers": [dict(broker) for broker in brokers]} if brokers else {}
        write_json({"config": file, "addresses": dict(addresses), **several, "settings": rows})
        return
    looked = ", ".join(map(str, places()))
    write(f"# file: {sources.config or f'none; looked for {CONFIG_VARIABLE}, {looked}'}\n")
    for option, value in addresses.items():
        write(f"# {option} {value}\n")
    for broker in brokers:
        write(f"# {', '.join(f'{what} {value}' for what, value in broker.items())}\n")
    width = max(len(f"{each.name}={each.value}") for each in shown if len(each.value) < _WIDE)
    for each in sorted(shown, key=lambda each: origins[each.name] == DEFAULT):  # what was changed comes first
        write(f"{f'{each.name}={each.value}':{width}}  # {origins[each.name]}\n")


_WIDE: Final = 40
