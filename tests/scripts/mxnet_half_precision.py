"""Gluon with gradients that travel in half precision, by BytePS's own compression of that name."""

import byteps.mxnet as bps
import mxnet as mx
from mxnet import autograd, gluon
from report import report

bps.init()
mx.random.seed(1)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(96, activation="relu"), gluon.nn.Dense(128, activation="relu"), gluon.nn.Dense(10))
net.initialize(mx.init.Xavier())
net.hybridize()
options = {"learning_rate": 0.1, "momentum": 0.9}
trainer = bps.DistributedTrainer(net.collect_params(), "sgd", options, compression_params={"fp16": True})
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

mx.random.seed(100 + bps.rank())
losses = []
for _ in range(6):
    inputs, labels = mx.nd.random.normal(shape=(16, 32)), mx.nd.random.randint(0, 10, shape=(16,))
    with autograd.record():
        loss = loss_of(net(inputs), labels)
    loss.backward()
    trainer.step(16)
    losses.append(loss.mean().asscalar())
report([p.data() for p in net.collect_params().values()], losses=losses)
