"""Makes the package `bench`, which lies beside `tests`, importable however pytest was started."""

from __future__ import annotations

import sys

from support import ROOT

sys.path.insert(0, str(ROOT))
