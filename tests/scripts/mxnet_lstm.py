"""An LSTM over text in chunks, norms of gradients read before the step."""

import byteps.mxnet as bps
import mxnet as mx
from mxnet import autograd, gluon
from report import report


class Model(gluon.Block):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.embed = gluon.nn.Embedding(50, 32)
            self.rnn = gluon.rnn.LSTM(48, input_size=32)
            self.out = gluon.nn.Dense(50, in_units=48)

    def forward(self, tokens, state):
        hidden, state = self.rnn(self.embed(tokens), state)
        return self.out(hidden.reshape((-1, 48))), state


bps.init()
mx.random.seed(1)
model = Model()
model.initialize(mx.init.Xavier())
trainer = bps.DistributedTrainer(model.collect_params(), "adam", {"learning_rate": 0.01})
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

mx.random.seed(100 + bps.rank())
text = mx.nd.random.randint(0, 50, shape=(49, 4))
state = model.rnn.begin_state(batch_size=4)
norms = []
for start in range(0, 48, 8):
    state = [each.detach() for each in state]
    with autograd.record():
        output, state = model(text[start : start + 8], state)
        loss = loss_of(output, text[start + 1 : start + 9].reshape((-1,)))
    loss.backward()
    norms.append([p.grad().norm().asscalar() for p in model.collect_params().values()])
    trainer.step(32)
report([p.data() for p in model.collect_params().values()], norms=norms)
