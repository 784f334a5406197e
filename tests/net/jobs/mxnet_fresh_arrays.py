"""Sends arrays of MXNet the moment they are made, which its engine has yet to allocate, and checks what comes back.

Rule of this file: an ordinary BytePS program with MXNet. It knows nothing of Prophet and runs in a process of its own.
The argument is how many.
"""

from __future__ import annotations

import sys

import byteps.mxnet as bps
import mxnet as mx
import numpy as np

ARRAYS = int(sys.argv[1])

bps.init()
arrays = []
for number in range(ARRAYS):
    array = mx.nd.full((10, 10), number).copyto(mx.cpu())
    bps.byteps_declare_tensor(f"array{number}")
    bps.byteps_push_pull(array, name=f"array{number}", is_average=False)
    arrays.append(array)
wrong = [number for number, array in enumerate(arrays) if not np.all(array.asnumpy() == number * bps.size())]
print("wrong", len(wrong), flush=True)
