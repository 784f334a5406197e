"""A rank of a job that trains until Prophet has made a plan; for test_records.py.

`fallback` as argument: a hook of the script's own is registered after two iterations.
"""

import sys  # no annotations as text: torch looks at those of a hook

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

MOST_ROUNDS = 20_000


def own_hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    dist.all_reduce(bucket.buffer())
    done = torch.futures.Future[torch.Tensor]()
    done.set_result(bucket.buffer())
    return done


def planned() -> bool:
    """Whether a plan was made, on any rank."""
    from prophet_ddp.takeover import _records

    flag = torch.tensor(float(_records.status().plans))
    dist.all_reduce(flag)
    return bool(flag > 0)


def main() -> DistributedDataParallel:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for iteration in range(MOST_ROUNDS):
        optimizer.zero_grad()
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
        if "fallback" in sys.argv and iteration == 2:
            model.register_comm_hook(None, own_hook)
            return model
        if iteration % 50 == 49 and planned():
            return model
    sys.exit(3)


if __name__ == "__main__":
    trained = main()
    dist.destroy_process_group()
