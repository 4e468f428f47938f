"""Chance that can be repeated: whoever tests at random takes the seed from here.

On a developer's machine each run has another one, so that in time more is tried. In CI, where the environment has
CI, it is always the same: what lands is judged by what it changes, not by luck. PENSTOCK_SEED sets one anywhere.
"""

from __future__ import annotations

import os
import random

IS_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")
_IN_CI = 20260401


def chosen_seed() -> int:
    """The seed of this test, printed as it can be set again."""
    seed = int(os.environ.get("PENSTOCK_SEED") or (_IN_CI if IS_CI else random.randrange(1 << 30)))
    print(f"PENSTOCK_SEED={seed}")
    return seed
