"""Optional fault tolerance: atomic checkpoints, rotation and exact resume."""

from td3_lightning.checkpointing.callback_order import callbacks as callbacks
