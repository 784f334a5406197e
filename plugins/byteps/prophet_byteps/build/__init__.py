"""The CPU build: BytePS 0.2.5.post15 for machines without a GPU, built from its source release on PyPI and cached.

Only experiments and tests need it; a machine with its own BytePS uses none of it. `python -m prophet_byteps.build
install` fetches BytePS's source, edits it by rules (`edits/`, `rules.py`), builds it against small stand-ins for CUDA,
NCCL and libnuma (`include/`), and installs it into the running interpreter's environment. `build --cuda` (`cuda.py`)
builds it against the real libraries, for machines with GPUs.
"""
