"""Measurements that a user can repeat: speed beside other implementations, and results over seeds."""
