"""The weights of the signs of trouble, by trouble: a base, and one for each of `SIGNS`.

Written by ``python -m scripts.fit_suspicion``; not to be changed by hand.
"""

from __future__ import annotations

from typing import Final

WEIGHTS: Final[dict[str, tuple[float, ...]]] = {
    "stalled": (
        -3.73,  # base
        1.29,  # bad in 2
        0.89,  # bad in 4
        1.13,  # stall
        -0.17,  # failed in 4
        -0.13,  # failed in 8
        -0.39,  # one cause
        0.10,  # red in 8
        0.57,  # asked again in 8
        -0.06,  # outside in 4
        -0.03,  # outside in 8
        -0.08,  # inside in 4
        -0.22,  # new names in 8
        -0.65,  # new names rise
        -0.18,  # early
        0.57,  # nothing asked in 8
        -0.56,  # new in results
    ),
    "cascading": (
        -4.18,  # base
        1.06,  # bad in 2
        0.90,  # bad in 4
        -0.56,  # stall
        1.17,  # failed in 4
        0.79,  # failed in 8
        1.38,  # one cause
        0.39,  # red in 8
        -0.52,  # asked again in 8
        -0.24,  # outside in 4
        -0.18,  # outside in 8
        -0.02,  # inside in 4
        0.28,  # new names in 8
        0.25,  # new names rise
        -0.30,  # early
        -0.26,  # nothing asked in 8
        0.52,  # new in results
    ),
    "drifting": (
        -3.14,  # base
        -0.34,  # bad in 2
        -0.34,  # bad in 4
        -0.24,  # stall
        -0.14,  # failed in 4
        -0.08,  # failed in 8
        -0.06,  # one cause
        -0.24,  # red in 8
        -0.00,  # asked again in 8
        1.47,  # outside in 4
        0.91,  # outside in 8
        -0.88,  # inside in 4
        0.87,  # new names in 8
        0.58,  # new names rise
        -0.71,  # early
        -0.10,  # nothing asked in 8
        -0.18,  # new in results
    ),
}
