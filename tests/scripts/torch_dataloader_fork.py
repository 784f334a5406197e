"""DataLoader workers, forked anew for each epoch; the dataset looks at the model to choose hard examples."""

import byteps.torch as bps
import torch
from report import report
from torch import nn
from torch.utils.data import DataLoader, Dataset

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())


class HardExamples(Dataset):
    """Of two candidates the one with the larger loss, by the weights at the start of the epoch."""

    def __init__(self, model):
        self.model = model
        self.inputs, self.labels = torch.randn(64, 2, 32), torch.randint(10, (64, 2))

    def __len__(self):
        return 64

    @torch.no_grad()
    def __getitem__(self, index):
        losses = nn.functional.cross_entropy(self.model(self.inputs[index]), self.labels[index], reduction="none")
        return self.inputs[index, losses.argmax()], self.labels[index, losses.argmax()]


loader = DataLoader(HardExamples(model), batch_size=32, num_workers=2)
losses = []
for _ in range(3):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
report(model, losses=losses)
