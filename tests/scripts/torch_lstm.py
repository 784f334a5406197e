"""A two-layer LSTM over text in chunks: the hidden state goes on, cut off from the last chunk; norms clipped."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.rnn = nn.LSTM(32, 48, num_layers=2, dropout=0.2)
        self.out = nn.Linear(48, 50)

    def forward(self, tokens, state):
        hidden, state = self.rnn(self.embed(tokens), state)
        return self.out(hidden), state


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
text = torch.randint(50, (6 * 8 + 1, 4))
state, norms = None, []
for start in range(0, 48, 8):
    if state is not None:
        state = tuple(each.detach() for each in state)
    optimizer.zero_grad()
    output, state = model(text[start : start + 8], state)
    nn.functional.cross_entropy(output.flatten(0, 1), text[start + 1 : start + 9].flatten()).backward()
    optimizer.synchronize()
    norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.25))
    with optimizer.skip_synchronize():
        optimizer.step()
report(model, norms=norms, state=list(state))
