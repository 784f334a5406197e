"""Rounds of a worker in PyTorch: its memory, sums of several workers' updates, and copies for a replica."""
