"""A worker's rounds in PyTorch: its memory, sums of several workers' updates, and copies for a replica."""
