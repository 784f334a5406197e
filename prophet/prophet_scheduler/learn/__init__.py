"""What a job's events say about its gradients and its network, and when a new plan is worth it."""
