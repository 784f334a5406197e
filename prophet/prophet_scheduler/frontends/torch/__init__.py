"""PyTorch: gradients in an arena, updates delayed until each parameter's next use, and detection of such uses."""
