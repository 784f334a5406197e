"""mxnet_digits.py, of which worker 1 dies before it sends anything: mxnet_dies.py, and that one's arguments.

Rule of this file: what is changed before the job runs as it is.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import byteps.mxnet

if os.environ["DMLC_WORKER_ID"] == "1":
    # BytePS's trainer broadcasts parameters with it, when all have said what they train.
    byteps.mxnet.byteps_push_pull = lambda *args, **kwargs: os._exit(7)
runpy.run_path(str(Path(__file__).with_name("mxnet_digits.py")), run_name="__main__")
