"""Learning a job's gradients and network from its events, and deciding when a new plan is worth it."""
