"""What a worker says of itself while it runs: a status that can be asked for, figures for Prometheus, a record."""
