"""Optional faster implementations with the same results."""
