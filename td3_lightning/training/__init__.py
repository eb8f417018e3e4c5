"""The loop of a run: data module, collector, evaluation, and the callbacks that change training.

Callbacks that only show or save belong in `reporting` and `checkpointing`. The update itself is in `algorithm`.
"""
