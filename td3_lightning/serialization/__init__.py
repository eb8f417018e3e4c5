"""The content of a checkpoint as tensors and plain data, and its checks before use.

No file here runs or imports code that a checkpoint names, and none knows which run it serves.
"""
