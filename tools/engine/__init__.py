"""The engine: BytePS 0.2.5.post15 for machines without a GPU, built from its source release on PyPI and cached.

Only experiments and tests need it; a machine with its own BytePS uses nothing of it. BytePS's source is fetched, mended
by rules (`compatibility.py`, `corrections.py`), built against small stand-ins for CUDA, NCCL and libnuma (`include/`) and
installed into the running interpreter's environment: `python -m prophet.tools.engine install`.
"""
