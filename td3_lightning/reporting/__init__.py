"""What a person sees of a run: progress, logs, learning curves, tables, pictures and videos.

A report that fails is a warning. Nothing here changes a weight, a transition or a random number.
"""
