"""Ours against theirs, in one run on one machine: ingest, match, query, and relaying.

The peers come from PyPI in pinned versions, each into a folder of its own; nginx is used where it
is on the PATH. Each thing measured is a module with ``measure(rounds, scale)``. Rules they keep:

* All peers take turns in every round, so that a slow moment of the machine slows each of them.
  Figures of different runs are not to be compared; ratios within one run are.
* What cannot be installed, started or measured gives a line with the reason, and the others go on.
* Every process that was started ends with the run.
"""
