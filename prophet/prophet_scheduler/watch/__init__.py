"""Reports of a running worker: status on request, metrics for Prometheus, and a record."""
