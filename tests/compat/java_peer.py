"""Apache RocketMQ's own store, run beside the tests: a small Java program that answers JSON line by line.

Built once per session with Maven from `tests/java`; where Maven, Java or the artifacts cannot be had, the tests that
need it are skipped with the reason.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent.parent / "java"
OPENED = ("java.nio", "sun.nio.ch", "jdk.internal.ref")


class PeerError(Exception):
    """Java's store refused or failed; the text is Java's."""


def build() -> list[Path]:
    """Compiles the program and fetches what it needs; returns the class path. Raises PeerError with the reason."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise PeerError(f"{tool} is not installed")
    done = subprocess.run(
        ["mvn", "-q", "-B", "-Dstyle.color=never", "package"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise PeerError(f"Maven failed: {lines[0] if lines else done.returncode}")
    target = PROJECT / "target"
    return [*target.glob("store-peer-*.jar"), *target.glob("lib/*.jar")]


class Peer:
    """One Java process. Use it in a `with` block."""

    def __init__(self, class_path: list[Path], heap: str = "1g") -> None:
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        self._process = subprocess.Popen(
            ["java", f"-Xmx{heap}", *opens, "-cp", ":".join(map(str, class_path)), "penstock.Peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Sends one request and returns the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(10)
            raise PeerError(f"the Java process ended with {self._process.returncode}: {''.join(self._said[-20:])}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise PeerError(f"{answer['error']}: {''.join(self._said[-20:])}")
        return answer

    def open(self, path: Path, settings: dict[str, Any]) -> Any:
        return self.ask("open", path=str(path), settings=settings)

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def __enter__(self) -> Peer:
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


def message_json(**fields: Any) -> dict[str, Any]:
    """A message for Java to put, with the defaults of Penstock's Message."""
    body = fields.pop("body", b"")
    return {
        "queue_id": 0,
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp": 0,
        "born_host": "127.0.0.1:0",
        "store_host": "127.0.0.1:10911",
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "properties": {},
        **fields,
        "body": base64.b64encode(body).decode(),
    }
