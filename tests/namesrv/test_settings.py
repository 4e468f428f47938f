"""The name server's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadSettings
from penstock.namesrv import NamesrvSettings


def test_a_file_and_then_pairs_are_read(tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text("listenPort=1234\nkvConfigPath=/data/kv.json\nclusterTest=true\ntls.server.mode=disabled\n")
    settings = NamesrvSettings.load(conf, ["listenPort=0", "serverChannelMaxIdleTimeSeconds=30"])
    assert (settings.listen_port, settings.kv_config_path) == (0, Path("/data/kv.json"))
    assert settings.limits.idle_s == 30
    assert settings.tls == {"tls.server.mode": "disabled"}
    assert settings.notes() == ["clusterTest has no effect here."]
    read_again = NamesrvSettings.load(None, settings.to_properties().splitlines())
    assert read_again == NamesrvSettings(
        listen_port=0, server_channel_max_idle_time_seconds=30, kv_config_path=Path("/data/kv.json")
    )


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("listenPort", "'listenPort' is not a setting; write name=value"),
        ("listenport=1", "unknown setting 'listenport'; did you mean 'listenPort'?"),
        ("zzz=1", "unknown setting 'zzz'; no known setting has a similar name"),
        ("listenPort=65536", "it must be a whole number from 0 to 65535"),
        ("orderMessageEnable=perhaps", "it must be true or false"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(pair: str, sentence: str) -> None:
    with pytest.raises(BadSettings) as refused:
        NamesrvSettings.load(None, [pair])
    assert sentence in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="cannot read the settings: No such file"):
        NamesrvSettings.load(tmp_path / "none.conf")
    (tmp_path / "bad.conf").write_text("a=\\u1")
    with pytest.raises(BadSettings, match="line 1"):
        NamesrvSettings.load(tmp_path / "bad.conf")
