"""Gluon as BytePS documents it: a hybridized network, SGD with momentum, and the loss read for a log. It has a schedule
of the rate, and parameters saved in the middle and loaded again later.
"""

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
schedule = mx.lr_scheduler.FactorScheduler(step=2, factor=0.7, base_lr=0.1)
trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"momentum": 0.9, "lr_scheduler": schedule})
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

mx.random.seed(100 + bps.rank())
losses = []
for iteration in range(8):
    inputs, labels = mx.nd.random.normal(shape=(16, 32)), mx.nd.random.randint(0, 10, shape=(16,))
    with autograd.record():
        loss = loss_of(net(inputs), labels)
    loss.backward()
    trainer.step(16)
    if iteration == 3:
        net.save_parameters("net.params")
    if iteration == 5:
        net.load_parameters("net.params")
    losses.append(loss.mean().asscalar())
report([p.data() for p in net.collect_params().values()], losses=losses, rate=trainer.learning_rate)
