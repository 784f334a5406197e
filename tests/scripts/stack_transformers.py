"""Hugging Face's Trainer: its clipping, accumulation, a schedule, evaluation on the way, checkpoints, a run resumed."""

import torch
from report import report
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

OUT = "../out"


class Text(Dataset):
    def __init__(self, rows, seed):
        self.rows = torch.randint(64, (rows, 16), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        return {"input_ids": self.rows[place], "labels": self.rows[place]}


def trainer(steps):
    set_seed(1)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    told = TrainingArguments(
        OUT,
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=steps,
        learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=6,
        report_to="none",
        disable_tqdm=True,
    )
    return Trainer(GPT2LMHeadModel(config), told, train_dataset=Text(256, 3), eval_dataset=Text(32, 4))


trainer(6).train()
resumed = trainer(12)
resumed.train(resume_from_checkpoint=f"{OUT}/checkpoint-6")
log = [row[key] for row in resumed.state.log_history for key in ("loss", "grad_norm", "eval_loss") if key in row]
report(resumed.model, state=resumed.optimizer.state_dict(), log=[float(value) for value in log])
