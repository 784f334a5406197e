"""A transformer with AdamW, no weight decay for norms and biases, and a warm-up on the wrapped optimizer."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, dropout=0.1, batch_first=True)
model = nn.ModuleDict(
    {"embed": nn.Embedding(100, 32), "encoder": nn.TransformerEncoder(layer, 2), "head": nn.Linear(32, 100)}
)
decayed = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() <= 1]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=3e-3)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
losses, rates = [], []
for _ in range(6):
    tokens = torch.randint(100, (4, 17))
    hidden = model["encoder"](
        model["embed"](tokens[:, :-1]), is_causal=True, mask=torch.triu(torch.ones(16, 16) * -1e9, 1)
    )
    loss = nn.functional.cross_entropy(model["head"](hidden).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
    rates.append(scheduler.get_last_lr()[0])
report(model, losses=losses, rates=rates)
