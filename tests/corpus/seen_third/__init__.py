"""A third set of kinds of work, by an author who had read neither the detectors nor the other kinds.

Each module but `stage` is a kind: ``trajectories(rng)`` yields without end, in rounds of 38 (`stage.CYCLE`): 12 drifts,
6 stalls, 5 error cascades and 15 healthy ones. A few have a second trouble, too.
"""
