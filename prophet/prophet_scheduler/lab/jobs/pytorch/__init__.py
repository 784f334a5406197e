"""Job scripts in PyTorch; an engine (engines) moves their gradients."""
