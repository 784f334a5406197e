"""A loop with accelerate: accumulation, clipping, a schedule, evaluation, half precision within, saved and loaded."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from report import report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
set_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
generator = torch.Generator().manual_seed(2)
data = TensorDataset(torch.randn(250, 32, generator=generator), torch.randint(10, (250,), generator=generator))
model, optimizer, loader, schedule = accelerator.prepare(
    model, optimizer, DataLoader(data, batch_size=8, shuffle=True), schedule
)

log = []
for epoch in range(3):
    model.train()
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                log.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        log.append(loss.item())
    model.eval()
    with torch.no_grad():
        said = [accelerator.gather_for_metrics((model(inputs).argmax(1), labels)) for inputs, labels in loader]
    log.append(sum((guess == label).sum().item() for guess, label in said))
    if epoch == 0:
        accelerator.save_state("../out")
    elif epoch == 1:
        accelerator.load_state("../out")
report(accelerator.unwrap_model(model), state=optimizer.state_dict(), log=log)
accelerator.end_training()
