"""A program in another language that answers JSON, line by line: how tests drive real clients and Java's store."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from typing import Any, Self


class PeerError(Exception):
    """The other program refused or failed; the text is its own."""


class Talker:
    """One process. Use it in a `with` block."""

    def __init__(self, command: Sequence[str], **how: Any) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            **how,
        )
        self._said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Sends one request and returns the answer. Raises PeerError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(10)
            raise PeerError(f"the process ended with {self._process.returncode}: {''.join(self._said[-20:])}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise PeerError(f"{answer['error']}: {''.join(self._said[-20:])}")
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
