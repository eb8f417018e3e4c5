"""Exchange of weights with other programs."""
