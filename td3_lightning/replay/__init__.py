"""Transitions in memory: ring buffers, n-step windows, priorities, frames, datasets, and `Batch`.

Here and nowhere else, rewards become n-step sums and terminations become discounts. No file here knows an agent or an
environment.
"""
