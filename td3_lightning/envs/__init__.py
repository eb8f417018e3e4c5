"""Environments: construction, workers, wrappers, the check of each step, exact restoration, and the car.

No file here knows an agent, a replay buffer or a Trainer.
"""
