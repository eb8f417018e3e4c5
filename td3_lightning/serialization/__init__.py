"""What a checkpoint holds, and the checks before any of it is used."""
