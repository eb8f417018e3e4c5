"""Repeatable measurements: speed compared with other implementations, and results over seeds."""
