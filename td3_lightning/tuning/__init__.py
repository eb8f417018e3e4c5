"""Optional: many runs of one configuration, over the settings of a search space or over random seeds.

Each run is an ordinary `fit` in its own process and folder, so it is resumed, saved and logged like any other run.
"""
