"""The Dockerfile, as far as it can be checked without Docker: what it copies is there, its command serves and stops."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

from support import ROOT
from support.loopback import free_port

TEXT = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
PROGRAM = Path(sys.executable).with_name("penstock")


def test_it_copies_the_wheel_and_the_versions_that_were_tested_and_nothing_else() -> None:
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", TEXT, re.M) for word in line.split()]
    assert copied == ["constraints.txt", "dist/penstock-*.whl"]
    assert (ROOT / "constraints.txt").exists()
    sent = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert sent == ["*", "!constraints.txt", "!dist/*.whl"], "a build sends no sources and no environment"


def test_it_does_not_run_as_root_and_keeps_the_store_on_a_volume() -> None:
    assert re.search(r"^USER penstock$", TEXT, re.M)
    assert re.search(r"^VOLUME /data$", TEXT, re.M)


def test_its_command_serves_and_stops_cleanly_on_its_signal(tmp_path: Path) -> None:
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", TEXT, re.M)
    put = {"penstock": str(PROGRAM), "/data/store": str(tmp_path / "store")}
    watched = f"127.0.0.1:{free_port()}"
    put |= {"0.0.0.0:10911": "127.0.0.1:0", "0.0.0.0:9876": "127.0.0.1:0", "0.0.0.0:10913": watched}
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
        (check,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", TEXT, re.M)
        probe = [word.replace("127.0.0.1:10913", watched) for word in json.loads(check)]
        assert subprocess.run([sys.executable, *probe[1:]], check=False).returncode == 0
        (stop,) = re.findall(r"^STOPSIGNAL (\w+)$", TEXT, re.M)
        process.send_signal(signal.Signals[stop])
        assert process.wait(30) == 0
    assert not (tmp_path / "store" / "abort").exists(), "it was a clean stop"
    assert subprocess.run([sys.executable, *probe[1:]], stderr=subprocess.DEVNULL, check=False).returncode != 0
