"""Lightning's Trainer: clipping, accumulation, a schedule, validation on the way, checkpoints, a run resumed."""

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from report import report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

OUT = "../out"


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
        self.losses = []

    def training_step(self, batch, number):
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, number):
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("validated", loss, sync_dist=True)
        self.losses.append(loss.item())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def loader(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    data = TensorDataset(torch.randn(rows, 32, generator=generator), torch.randint(10, (rows,), generator=generator))
    return DataLoader(data, batch_size=8)


def trained(steps, resumed_from=None):
    lightning.seed_everything(1)
    model = Classifier()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=steps,
        gradient_clip_val=0.5,
        accumulate_grad_batches=2,
        val_check_interval=4,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=OUT,
        callbacks=[ModelCheckpoint(OUT, "{step}", every_n_train_steps=5, save_top_k=-1)],
    )
    trainer.fit(model, loader(256, 2), loader(32, 3), ckpt_path=resumed_from)
    return model


trained(5)
model = trained(12, f"{OUT}/step=5.ckpt")
report(model, losses=model.losses, state=model.optimizers(use_pl_optimizer=False).state_dict())
