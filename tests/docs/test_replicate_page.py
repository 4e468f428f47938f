"""docs/how-to/replicate.md, command by command: a pair runs, its master is lost with its disk, and comes back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.clusters import Load, log_on_disk, nothing_is_lost, wait_for
from support.clusters import Reader as Consumer
from support.documents import Block, Reader, to_run

from penstock.client.sync import Admin

PAGE = "docs/how-to/replicate.md"


def follow(reader: Reader, blocks: list[Block]) -> None:
    for block in blocks:
        if block.kind == "ini":
            reader.write(block.text)
        else:
            for line in block.text.splitlines():
                reader.type(line)


def acknowledges(namesrv: str, name: str) -> list[bytes]:
    """What a load gets acknowledged, once a slave follows."""

    def is_followed() -> bool:
        with Admin(namesrv) as admin:
            [(_, master)] = admin.cluster.masters().items()
            return bool(admin.cluster.replication(master).ha_connection_info)

    wait_for(is_followed)
    with Load(namesrv, name) as load:
        load.wait_for_more(50)
    return load.acknowledged


@pytest.mark.slow
def test_a_pair_loses_its_master_and_gets_it_back_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = to_run(PAGE, "ini", "sh")
    promoted = next(at for at, block in enumerate(blocks) if "promoted.conf" in block.text)
    back = next(at for at, block in enumerate(blocks) if "back.conf" in block.text)
    stores = [tmp_path / machine / "srv" / "store" for machine in ("10.0.0.7", "10.0.0.8")]
    with Reader(tmp_path) as reader:
        namesrv = reader.here("10.0.0.5:9876")
        follow(reader, blocks[:promoted])
        sent = acknowledges(namesrv, "pair")
        with Consumer(namesrv) as consumer:
            wait_for(lambda: len(consumer.got) > 10)
            reader.lose(stores[0])
            shutil.rmtree(stores[0])
            wait_for(lambda: consumer.has(sent))
            assert len(consumer.got) == len(set(consumer.got)), "it goes on at the slave, and gets nothing twice"
        follow(reader, blocks[promoted:back])
        follow(reader, blocks[back:])
        sent += acknowledges(namesrv, "back")
        wait_for(lambda: log_on_disk(stores[0]) == log_on_disk(stores[1]))
    for store in stores:
        nothing_is_lost(store, sent)
