"""A Gluon job that compresses its gradients in BytePS, as its documentation shows, and the digest of what it learned.

Rule of this file: an ordinary MXNet program. It knows nothing of Prophet and runs in a process of its own.
"""

from __future__ import annotations

import hashlib

import byteps.mxnet as bps
import mxnet as mx
from mxnet import autograd, gluon

STEPS = 6

bps.init()
mx.random.seed(7)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(512, activation="relu"), gluon.nn.Dense(512, activation="relu"), gluon.nn.Dense(10))
net.initialize(mx.init.Xavier())
trainer = bps.DistributedTrainer(
    net.collect_params(), "sgd", {"learning_rate": 0.05}, compression_params={"compressor": "onebit", "scaling": True}
)
images = mx.nd.random.normal(shape=(STEPS, 8, 512))
for step in range(STEPS):
    with autograd.record():
        loss = net(images[step] * (bps.rank() + 1)).square().mean()  # every worker has data of its own
    loss.backward()
    trainer.step(8)
    loss.asscalar()
parameters = net.collect_params().values()
digest = hashlib.sha256(b"".join(parameter.data().asnumpy().tobytes() for parameter in parameters))
print("weights", digest.hexdigest(), flush=True)
