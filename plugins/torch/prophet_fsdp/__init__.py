"""Prophet for PyTorch's FSDP2: parameters come before they are needed, and gradients leave while backward runs."""
