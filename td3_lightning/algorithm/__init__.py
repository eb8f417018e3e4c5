"""TD3 and TD7: networks, losses and the update."""
