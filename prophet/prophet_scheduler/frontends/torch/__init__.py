"""PyTorch: gradients in an arena, updates as late as the next use of each parameter, and what counts as a use."""
