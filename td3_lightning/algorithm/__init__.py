"""The TD3 algorithm: networks, losses and the update."""
