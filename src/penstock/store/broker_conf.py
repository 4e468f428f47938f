"""The broker.conf with which an Apache RocketMQ 4.9 broker opens a store of ours.

Paths, file sizes and index geometry are always written: the geometry cannot be read from the files, and
4.9.2 looks for the commitlog in the user's home unless it is told. Then comes everything that differs from
RocketMQ's default. Only names that RocketMQ knows are written; settings that it takes as Java system
properties appear as a comment.
"""

from __future__ import annotations

from penstock.store.broker_names import PENSTOCK_BROKER_NAMES
from penstock.store.java_properties import format_property
from penstock.store.setting_spec import Origin
from penstock.store.setting_table import SPECS
from penstock.store.settings import Settings

_ALWAYS = (
    "store_path_root_dir",
    "store_path_commit_log",
    "mapped_file_size_commit_log",
    "mapped_file_size_consume_queue",
    "max_hash_slot_num",
    "max_index_num",
)


def to_broker_conf(settings: Settings) -> str:
    """The text of the file; paths are made absolute."""
    settings = settings.with_changes(
        store_path_root_dir=settings.store_path_root_dir.absolute(),
        store_path_commit_log=settings.commit_log_dir.absolute(),
    )
    lines = ["# The files of this store: keep these as they are."]
    lines += [_line(settings, attribute) for attribute in _ALWAYS]
    different = [spec for spec in settings.changed() if spec.attribute not in _ALWAYS]
    rest = [_line(settings, spec.attribute) for spec in different if spec.about.origin is Origin.BROKER_CONF]
    known = {name: value for name, value in settings.broker.items() if name not in PENSTOCK_BROKER_NAMES}
    rest += [format_property(name, value) for name, value in known.items()]
    if rest:
        lines += ["# Different from RocketMQ's defaults.", *rest]
    for spec in different:
        if spec.about.origin is Origin.SYSTEM_PROPERTY:
            value = spec.show(getattr(settings, spec.attribute))
            lines.append(f"# Start Java with -D{spec.name}={value}")
    return "\n".join(lines) + "\n"


def _line(settings: Settings, attribute: str) -> str:
    spec = SPECS[attribute]
    return format_property(spec.name, spec.show(getattr(settings, attribute)))
