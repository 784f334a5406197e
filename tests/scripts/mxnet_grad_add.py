"""Gradients added up over two backward passes (grad_req "add"), and cleared by the script."""

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
net.collect_params().setattr("grad_req", "add")
trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "wd": 0.01})
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

mx.random.seed(100 + bps.rank())
losses = []
for iteration in range(10):
    inputs, labels = mx.nd.random.normal(shape=(16, 32)), mx.nd.random.randint(0, 10, shape=(16,))
    with autograd.record():
        loss = loss_of(net(inputs), labels)
    loss.backward()
    losses.append(loss.mean().asscalar())
    if iteration % 2 == 1:
        trainer.step(32)
        net.collect_params().zero_grad()
report([p.data() for p in net.collect_params().values()], losses=losses)
