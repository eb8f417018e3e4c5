"""Report a run: progress, logs, learning curves, tables and videos."""
