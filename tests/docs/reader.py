"""Somebody who types the commands of a page, one after the other, in a folder of his own.

All machines of the page are this one: 10.0.0.7 is an address of loopback that nobody else here listens at, and so are
0.0.0.0 and 127.0.0.1; /srv, /stores and /data are in the reader's folder. A file that an `ini` block shows, as in
`# 10.0.0.7: broker.conf of the master`, is written for that machine, and commands that listen at its address find it.
Commands that serve stay until the end of the page, or until another one is typed that serves the same store; then they
are asked to stop, and must do so cleanly.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Final, Self

from penstock.cli.main import main

_SERVE: Final = ("serve", "namesrv", "console")
_UP: Final = re.compile(r"stops it|listens at|The console of")
_STOP_S: Final = 40
_DEFAULTS: Final = {
    "serve": {"--listen": "127.0.0.1:10911", "--namesrv": "127.0.0.1:9876", "--console": "off", "--profile": "dev"},
    "namesrv": {"--listen": "127.0.0.1:9876"},
    "console": {"--listen": "127.0.0.1:8080"},
}
"""What is given where the page leaves it to the default: the same, but for this reader alone, and small files."""


class Reader:
    """Types commands. Use it in a `with` block, in the folder that is the current one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loopback = f"127.{os.getpid() >> 8 & 127 or 1}.{os.getpid() & 255}."
        self._serving: dict[str, subprocess.Popen[str]] = {}

    def here(self, text: str, home: Path | None = None) -> str:
        """The text, with addresses and folders of this machine."""
        text = re.sub(r"\b10\.0\.0\.\d+/\d+", "127.0.0.0/8", text)
        text = text.replace("10.0.0.", self._loopback)
        text = re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1)(?=:\d)", f"{self._loopback}99", text)
        return re.sub(r"(?<![\w./])/(?=(srv|stores|data)/)", f"{home or self.folder}/", text)

    def write(self, file: str) -> None:
        """Writes a file of settings where its first line says."""
        found = re.match(r"# (\S+): (\S+)", file)
        assert found is not None, "the first line says on which machine it lies, and its name"
        home = self.folder / found[1]
        home.mkdir(exist_ok=True)
        (home / found[2]).write_text(self.here(file), encoding="utf-8")

    def type(self, line: str) -> None:
        """Returns when the command has ended well, or serves."""
        words = shlex.split(line, comments=True)
        if words[:1] != ["penstock"]:
            subprocess.run(["bash", "-c", line], check=True, timeout=60, cwd=self.folder)
        elif words[1] in _SERVE:
            self._serve(words[1:])
        else:
            assert main([self.here(word) for word in words[1:]]) == 0, line

    def _serve(self, words: list[str]) -> None:
        for name, value in _DEFAULTS[words[0]].items():
            if name not in words:
                words += [name, value]
        machine = self.folder / words[words.index("--listen") + 1].partition(":")[0]
        home = machine if machine.is_dir() else self.folder
        words = [self.here(word, home) for word in words]
        store = str(home / (words[words.index("--store") + 1] if "--store" in words else words[0]))
        if store in self._serving:
            self._stop(self._serving.pop(store))
        command = [sys.executable, "-m", "penstock.cli.main", *words]
        with (self.folder / "said.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=home)
        self._serving[store] = process
        assert process.stdout is not None
        printed = ""
        while not _UP.search(printed):
            line = process.stdout.readline()
            assert line, f"{' '.join(words)}\n{printed}\n{(self.folder / 'said.log').read_text(encoding='utf-8')}"
            printed += line
        if words[0] == "console":
            (link,) = re.findall(r"http://\S+", printed)
            with urllib.request.urlopen(link, timeout=_STOP_S) as page:  # loopback
                assert page.status == 200

    @staticmethod
    def _stop(process: subprocess.Popen[str]) -> None:
        process.terminate()
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(_STOP_S) == 0, process.args

    def lose(self, store: Path) -> None:
        """The machine that serves a store has a power cut."""
        process = self._serving.pop(str(store))
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        serving = list(reversed(self._serving.values()))  # brokers leave before their name server
        self._serving.clear()
        try:
            for process in serving:
                if process.poll() is None:
                    self._stop(process)
        finally:
            for process in serving:
                process.kill()
                process.wait()
