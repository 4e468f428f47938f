"""The process that `Pinned` starts: `python -m bench.pipeline.process FOLDER CORE ...`."""

from __future__ import annotations

import os
import sys

from bench.pipeline.pinned import serve

if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what Java prints is no answer
        serve(sys.argv[1], sys.argv[2:], sys.stdin, out)
