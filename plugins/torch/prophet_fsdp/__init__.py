"""Prophet for PyTorch's FSDP2: parameters are prefetched, and gradients are sent while backward runs."""
