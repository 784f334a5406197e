"""A worker's rounds in PyTorch: its memory, and copies for a replica."""
