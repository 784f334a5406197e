"""Mixed precision: gradients reduced in the parameters' type, in half precision, and with sums alone."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("gloo")


def train(policy, sums):
    torch.manual_seed(1)
    model = nn.Sequential(*(fully_shard(nn.Linear(48, 48), mp_policy=policy) for _ in range(4)))
    model.append(fully_shard(nn.Linear(48, 7), mp_policy=policy))
    fully_shard(model, mp_policy=policy)
    for module in model.modules():
        if sums and hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    for iteration in range(5):
        for _ in range(1 + iteration % 2):
            nn.functional.cross_entropy(model(torch.randn(8, 48)).float(), torch.randint(7, (8,))).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [param.full_tensor() for param in model.parameters()]


half, full = torch.bfloat16, torch.float32
weights = [
    train(MixedPrecisionPolicy(param_dtype=half, reduce_dtype=full), False),
    train(MixedPrecisionPolicy(param_dtype=half, output_dtype=full), False),
    train(MixedPrecisionPolicy(param_dtype=torch.float16, cast_forward_inputs=True), False),
    train(MixedPrecisionPolicy(), True),
]
report(weights)
dist.destroy_process_group()
