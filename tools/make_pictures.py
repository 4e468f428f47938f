"""Makes the pictures in the docs: of a run of `penstock pipeline usage`, and of the page that it writes.

    .venv/bin/python tools/make_pictures.py

Needs Spark, and Chromium for the page. Twelve days of an imagined shop are put into a store in a temporary folder, then
the real command runs in a terminal of 110 columns; what it printed becomes `docs/images/usage-run.svg`, and what
Chromium shows of its page `docs/images/usage-page.png`.
"""

from __future__ import annotations

import io
import math
import os
import pty
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from penstock.store import Message, MessageStore, Settings

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
COLUMNS = 110
DAYS = 12
HOUR_MS = 3_600_000
TOPICS = {"orders": (420, 700), "payments": (260, 350), "shipments": (150, 1200), "clicks": (900, 140)}
"""Messages in a busy hour, and the usual size of a body."""


def fill(path: Path) -> None:
    """Twelve days of traffic that swells by day and grows by week."""
    dice = random.Random(7)
    start = 1_794_528_000_000 - DAYS * 24 * HOUR_MS
    now = [start]
    with MessageStore.open(path, Settings.dev(mapped_file_size_commit_log=64 << 20), clock=lambda: now[0]) as store:
        for hour in range(DAYS * 24):
            busy = (1.2 + math.sin((hour % 24 - 8) / 24 * 2 * math.pi)) / 2.2 * (1 + hour / 24 / DAYS)
            for topic, (messages, size) in TOPICS.items():
                for number in range(int(messages * busy)):
                    now[0] = start + hour * HOUR_MS + number * HOUR_MS // int(messages * busy + 1)
                    body = dice.randbytes(max(int(dice.gauss(size, size / 4)), 20))
                    tag = dice.choice(("web", "app", "partner"))
                    key = f"{topic}-{hour}-{number}"
                    store.put(Message(topic, body, keys=(key,), tags=tag, queue_id=number % 4))


def run(command: list[str], folder: Path) -> str:
    """What a command prints into a terminal."""
    shown = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 4096)
        shown.extend(data)
        return data

    os.environ |= {"COLUMNS": str(COLUMNS), "LINES": "60", "TERM": "xterm-256color"}
    os.chdir(folder)
    if status := pty.spawn(command, read):
        sys.exit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return shown.decode()


def last_screen(text: str) -> str:
    """Without the states of a progress bar that were written over."""
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        for part in line.split("\x1b[2K")[-1:]:
            lines.append(part.rsplit("\r", 1)[-1])
    return "\n".join(line for line in lines if line.strip())


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    penstock = Path(sys.executable).with_name("penstock")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder / "store")
        words = ["penstock", "pipeline", "usage", "--store", "store", "--html", "usage.html"]
        shown = run([str(penstock), *words[1:]], folder)
        console = Console(record=True, width=COLUMNS, file=io.StringIO())
        console.print(Text(f"$ {' '.join(words)}", style="bold"))
        console.print(Text.from_ansi(last_screen(shown)))
        picture = console.export_svg(title="penstock pipeline usage")
        (IMAGES / "usage-run.svg").write_text(re.sub(r"@font-face *{.*?}", "", picture, flags=re.DOTALL))  # no network
        browser = shutil.which("chromium") or sys.exit("there is no Chromium here, so there is no picture of the page")
        flags = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1100,1020"]
        show = [browser, *flags, f"--screenshot={IMAGES / 'usage-page.png'}", f"file://{folder / 'usage.html'}"]
        subprocess.run(show, check=True, timeout=120, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
