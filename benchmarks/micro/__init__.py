"""The budgets, measured: hashing, ingest, match, memory, the store, and matching during a replay.

Each subject is a module with ``measure(scale)``, which yields measurements; ``scale`` shrinks the
work for a smoke test and is 1 otherwise. Nothing here judges: a figure is a median over runs with
its extremes, and what it leaves out is said in the module's docstring.
"""
