"""Environments: construction, wrappers, checks and vectorization."""
