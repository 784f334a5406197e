"""Gluon without hybridize(): a block with a forward() of its own, Adam, and weights read after each step."""

import byteps.mxnet as bps
import mxnet as mx
from mxnet import autograd, gluon
from report import report


class Net(gluon.Block):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first = gluon.nn.Dense(128, in_units=32)
            self.norm = gluon.nn.LayerNorm(in_channels=128)
            self.second = gluon.nn.Dense(96, in_units=128)
            self.out = gluon.nn.Dense(10, in_units=96)

    def forward(self, inputs):
        hidden = mx.nd.relu(self.norm(self.first(inputs)))
        return self.out(mx.nd.tanh(self.second(hidden)))


bps.init()
mx.random.seed(1)
net = Net()
net.initialize(mx.init.Xavier())
trainer = bps.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 0.01})
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

mx.random.seed(100 + bps.rank())
sums = []
for _ in range(6):
    inputs, labels = mx.nd.random.normal(shape=(16, 32)), mx.nd.random.randint(0, 10, shape=(16,))
    with autograd.record():
        loss = loss_of(net(inputs), labels)
    loss.backward()
    trainer.step(16)
    sums.append([p.data().norm().asscalar() for p in net.collect_params().values()])
report([p.data() for p in net.collect_params().values()], sums=sums)
