"""`penstock store conf`: the broker.conf for this store."""

from __future__ import annotations

from penstock.cli.options import AsJson, Config, Folder, Pairs
from penstock.cli.output import write, write_json
from penstock.config.properties import parse_properties
from penstock.errors import BadStore
from penstock.store.folder import StoreFolder
from penstock.store.geometry import fit_to_files
from penstock.store.settings import to_broker_conf


def conf(folder: Folder, config: Config = None, pairs: Pairs = None, as_json: AsJson = False) -> None:
    """The broker.conf with which a Java broker opens this store.

    Paths, and file sizes as the files have them, are always in it; then what --config and --set say that differs from
    RocketMQ's defaults. maxMessageSize is lowered to half a commitlog file where that is less than the default,
    because a larger record could not be stored.

    Examples:

    \b
      penstock store conf data/store > broker.conf
      penstock store conf data/store --set brokerName=broker-a --json
    """
    place = StoreFolder.find(folder, config, pairs)
    settings, problem = fit_to_files(place.settings, place.files, place.layout)
    if problem and settings.message_index_enable:
        raise BadStore(problem)
    if "max_message_size" not in settings.given:
        most = min(settings.max_message_size, settings.mapped_file_size_commit_log // 2)
        settings = settings.with_changes(max_message_size=most)
    text = to_broker_conf(settings)
    if as_json:
        write_json({entry.name: entry.value for entry in parse_properties(text.encode())})
    else:
        write(text)
