"""push_pull with priorities, called by the script itself, without a DistributedTrainer."""

import byteps.mxnet as bps
import mxnet as mx
from byteps.mxnet.ops import byteps_declare_tensor, byteps_push_pull
from mxnet import autograd, gluon
from report import report

bps.init()
mx.random.seed(1)
net = gluon.nn.HybridSequential()
# The widest gradient has 1.2 MB, which is more than a partition, and the narrowest 40 bytes.
net.add(gluon.nn.Dense(512, activation="relu"), gluon.nn.Dense(600, activation="relu"), gluon.nn.Dense(10))
net.initialize(mx.init.Xavier())
net(mx.nd.zeros((1, 32)))
parameters = list(net.collect_params().values())
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
for number in range(len(parameters)):
    byteps_declare_tensor(f"own.{number}")

mx.random.seed(100 + bps.rank())
losses = []
for _ in range(4):
    inputs, labels = mx.nd.random.normal(shape=(16, 32)), mx.nd.random.randint(0, 10, shape=(16,))
    with autograd.record():
        loss = loss_of(net(inputs), labels)
    loss.backward()
    losses.append(loss.mean().asscalar())
    for number, parameter in reversed(list(enumerate(parameters))):
        how = {} if number == 3 else {"priority": -number}
        byteps_push_pull(parameter.grad(), name=f"own.{number}", **how)
    for parameter in parameters:
        mx.nd.sgd_update(parameter.data(), parameter.grad(), lr=0.1, rescale_grad=1 / 16, out=parameter.data())
report([p.data() for p in parameters], losses=losses)
