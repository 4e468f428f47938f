"""Processes that a suite has started, and their end."""

from __future__ import annotations

import subprocess

_DOWN_WITHIN_S = 30.0


def end_child(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Asks it to end, and kills it if it does not; does nothing if it has ended."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_DOWN_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
