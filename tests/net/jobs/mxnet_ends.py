"""A Gluon job that ends with its last transfers under way, as one that has no metric to print.

Rule of this file: an ordinary MXNet program. It knows nothing of Prophet and runs in a process of its own.
"""

import sys

import byteps.mxnet as bps
import mxnet as mx
from mxnet import autograd, gluon

bps.init()
mx.random.seed(7)
net = gluon.nn.HybridSequential()
with net.name_scope():
    for _ in range(3):
        net.add(gluon.nn.Dense(512, in_units=512, activation="relu"))
net.initialize(mx.init.Xavier())
trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
inputs = mx.nd.random.uniform(shape=(8, 512))
for _ in range(20):
    with autograd.record():
        loss = net(inputs).square().mean()
    loss.backward()
    trainer.step(8)
if "shutdown" in sys.argv:
    bps.shutdown()
print("at the end", flush=True)
