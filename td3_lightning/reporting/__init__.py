"""Progress, logs, curves, tables and videos."""
