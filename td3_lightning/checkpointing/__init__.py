"""Optional fault tolerance: crash-safe checkpoints, their rotation, signals and exact resume.

The objects that own a state decide what of it is saved, in their `state_dict`. Nothing here changes what a run
computes.
"""

from td3_lightning.checkpointing.callback_order import callbacks as callbacks
