"""The session of one job: it turns events into decisions."""
