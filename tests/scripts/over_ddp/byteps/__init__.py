"""Stands where BytePS would, for scripts that are run over DistributedDataParallel instead."""
