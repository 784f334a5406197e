"""A moving average over kept arrays, weights held in a box through set_data, clipped gradients in the optimizer."""

import byteps.mxnet as bps
import mxnet as mx
from mxnet import autograd, gluon
from report import report

bps.init()
mx.random.seed(1)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(96, activation="relu", in_units=32), gluon.nn.Dense(128, activation="relu", in_units=96))
net.add(gluon.nn.Dense(10, in_units=128))
net.initialize(mx.init.Xavier())
net.hybridize()
options = {"learning_rate": 0.1, "momentum": 0.9, "clip_gradient": 0.01}
trainer = bps.DistributedTrainer(net.collect_params(), "sgd", options)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

mx.random.seed(100 + bps.rank())
kept = [p.data() for p in net.collect_params().values()]
average = None
for _ in range(6):
    inputs, labels = mx.nd.random.normal(shape=(16, 32)), mx.nd.random.randint(0, 10, shape=(16,))
    with autograd.record():
        loss = loss_of(net(inputs), labels)
    loss.backward()
    trainer.step(16)
    average = [0.9 * old + 0.1 * new for old, new in zip(average or kept, kept, strict=True)]
    for p in net.collect_params().values():
        p.set_data(p.data().clip(-0.05, 0.05))
report([p.data() for p in net.collect_params().values()], average=average)
