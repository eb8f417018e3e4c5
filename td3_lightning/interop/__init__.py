"""Exchange weights with other programs."""
