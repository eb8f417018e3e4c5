"""Data module, collector and the training callbacks."""
