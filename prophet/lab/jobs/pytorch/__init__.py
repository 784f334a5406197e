"""Job scripts in PyTorch, with BytePS or DistributedDataParallel."""
