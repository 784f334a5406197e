"""The CPU build: BytePS 0.2.5.post15 for machines without a GPU, from its source release on PyPI, cached.

Only experiments and tests need it; a machine with its own BytePS uses nothing of it. `python -m prophet_byteps.build
install` fetches BytePS's source, mends it by rules (`edits/`, `rules.py`), builds it against small
stand-ins for CUDA, NCCL and libnuma (`include/`) and installs it into the running interpreter's environment. With
`--cuda` (`cuda.py`) it is built against the real ones, for machines with GPUs.
"""
