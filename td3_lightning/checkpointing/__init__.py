"""Optional fault tolerance: atomic checkpoints, rotation and exact resume."""
