"""A convolutional network with batch norms, and a loop that waits for everything in each iteration."""

import byteps.mxnet as bps
import mxnet as mx
from mxnet import autograd, gluon
from report import report

bps.init()
mx.random.seed(1)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Conv2D(16, 3, padding=1), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"), gluon.nn.MaxPool2D())
net.add(gluon.nn.Conv2D(64, 3, padding=1), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"))
net.add(gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(50))
net.initialize(mx.init.Xavier())
net.hybridize(static_alloc=True)
trainer = bps.DistributedTrainer(net.collect_params(), "nag", {"learning_rate": 0.05, "momentum": 0.9})
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

mx.random.seed(100 + bps.rank())
losses = []
for _ in range(5):
    images, labels = mx.nd.random.normal(shape=(8, 3, 12, 12)), mx.nd.random.randint(0, 50, shape=(8,))
    with autograd.record():
        loss = loss_of(net(images), labels)
    loss.backward()
    trainer.step(8)
    mx.nd.waitall()
    losses.append(loss.mean().asscalar())
learned = [p for p in net.collect_params().values() if p.grad_req != "null"]
report([p.data() for p in learned], losses=losses)
