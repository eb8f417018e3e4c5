"""Content of a checkpoint, and its checks before use."""
