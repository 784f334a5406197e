"""PowerSGD with several buckets.

torch lets their all-reduces race: over gloo ranks issue them in different orders, and a job hangs or fails. So without
Prophet a hook here waits for each bucket. PowerSGD's results are the same.
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def one_by_one(hook: Any) -> Any:
    def waits(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = hook(state, bucket)
        future.wait()
        return future

    return hook if "PROPHET_SCHEDULER" in os.environ else waits


dist.init_process_group("gloo")
models, losses = [], []
for hook in (powerSGD_hook, default_hooks.fp16_compress_wrapper(powerSGD_hook)):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10)).double()
    model[2].float().register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
    model[4].float()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=3, orthogonalization_epsilon=1e-6)
    ddp.register_comm_hook(state, one_by_one(hook))
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(9):
        inputs, labels = torch.randn(16, 32).double(), torch.randint(10, (16,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert state.process_group is None
    models.append(ddp)
report(models, losses=losses)
