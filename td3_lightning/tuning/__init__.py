"""Optional: many runs of one configuration, over the settings of a search space or over random seeds.

Each run is an ordinary `fit` in its own process and folder. Nothing here trains, and no other package knows of sweeps.
"""
