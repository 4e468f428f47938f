"""The Dockerfile, as far as it can be checked without Docker: what it copies is there, its command serves and stops."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

from support import ROOT

TEXT = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
PROGRAM = Path(sys.executable).with_name("penstock")


def test_it_copies_what_is_there_and_what_a_build_needs() -> None:
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", TEXT, re.M) for word in line.split()]
    assert {"pyproject.toml", "setup.py", "LICENSE", "NOTICE", "README.md", "src"} <= set(copied)
    for name in copied:
        assert (ROOT / name).exists(), name


def test_it_does_not_run_as_root_and_keeps_the_store_on_a_volume() -> None:
    assert re.search(r"^USER penstock$", TEXT, re.M)
    assert re.search(r"^VOLUME /data$", TEXT, re.M)


def test_its_command_serves_and_stops_cleanly_on_its_signal(tmp_path: Path) -> None:
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", TEXT, re.M)
    put = {"penstock": str(PROGRAM), "/data/store": str(tmp_path / "store")}
    put |= {"0.0.0.0:10911": "127.0.0.1:0", "0.0.0.0:9876": "127.0.0.1:0"}
    words = json.loads(entry)
    assert put.keys() <= set(words)
    command = [put.get(word, word) for word in words]
    process = subprocess.Popen([*command, "--profile", "dev"], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Penstock ")
        for line in process.stdout:
            if "Stop with" in line:
                break
        (stop,) = re.findall(r"^STOPSIGNAL (\w+)$", TEXT, re.M)
        process.send_signal(signal.Signals[stop])
        assert process.wait(30) == 0
    assert not (tmp_path / "store" / "abort").exists(), "it was a clean stop"
