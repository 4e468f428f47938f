"""`penstock serve` as a process of our own, which can be stopped, and killed as a crash would.

Owns the process and its log file; whoever makes one closes it. A second start listens where the first one did, so that
clients find it again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.errors import PenstockError

_ANY: Final = "127.0.0.1:0"
_STOP_S: Final = 30


class BrokerProcess:
    """One broker with its name server, on one store. Used from one thread."""

    def __init__(self, store: Path, log: Path) -> None:
        self.store = store
        self.address = _ANY
        self.namesrv = _ANY
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The number of the process that runs; 0 if none does."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Returns when it serves. Raises PenstockError if it does not."""
        command = [sys.executable, "-m", "penstock.cli.main", "serve", "--profile", "dev", "--console", "off", "--json"]
        command += ["--store", str(self.store), "--listen", self.address, "--namesrv", self.namesrv]
        with self._log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.kill()
            raise PenstockError(f"the broker did not start; its last words: {self._last_words()}", path=self._log)
        told = json.loads(line)
        self.address, self.namesrv = told["broker"], told["namesrv"]

    def kill(self) -> None:
        """Ends it with SIGKILL: nothing of it gets a chance to put anything in order."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def stop(self) -> int:
        """Asks it to stop, as an operator would; its exit status."""
        if self._process is None:
            return 0
        self._process.terminate()
        return self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _end(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        try:
            return process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise PenstockError(f"the broker did not stop within {_STOP_S} seconds, and was killed") from None
        finally:
            process.stdout.close()

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else "none"
