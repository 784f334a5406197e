"""Lightning with manual optimization: two optimizers in turn, parameters without a gradient, half precision within."""

import pytorch_lightning as lightning
import torch
from report import report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Adversaries(lightning.LightningModule):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
        self.critic = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
        self.losses = []

    def training_step(self, batch, number):
        makes, judges = self.optimizers()
        (real,) = batch
        noise = torch.randn(len(real), 8)

        self.toggle_optimizer(judges)
        loss = self.critic(self.maker(noise).detach()).mean() - self.critic(real).mean()
        judges.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(judges, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
        judges.step()
        self.untoggle_optimizer(judges)
        self.losses.append(loss.item())

        self.toggle_optimizer(makes)
        loss = -self.critic(self.maker(noise)).mean()
        makes.zero_grad()
        self.manual_backward(loss)
        makes.step()
        self.untoggle_optimizer(makes)
        self.losses.append(loss.item())

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters(), lr=1e-2) for part in (self.maker, self.critic)]


lightning.seed_everything(1)
model = Adversaries()
data = TensorDataset(torch.randn(128, 16, generator=torch.Generator().manual_seed(2)))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp_find_unused_parameters_true",
    precision="bf16-mixed",
    max_epochs=2,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
)
trainer.fit(model, DataLoader(data, batch_size=8))
report(model, losses=model.losses)
