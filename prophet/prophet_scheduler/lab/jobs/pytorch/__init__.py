"""Job scripts in PyTorch; what moves their gradients is an engine's (engines)."""
