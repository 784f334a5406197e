"""Messages of torch's reducer for passes that cannot go on, word for word, since programs and people search for them.

Rule of this file: these messages, and Prophet's own where torch has none.
"""

from __future__ import annotations

import torch
from torch._C import _distributed_c10d as c10d

UNFINISHED = "Expected to have finished reduction in the prior iteration before starting a new one. "
CHANGED = (
    "This error indicates that your training graph has changed in this iteration, e.g., one parameter is used in first "
    "iteration, but then got unused in the second iteration. this is not compatible with static_graph set to True."
)
CHANGED_USE = (
    "Your training graph has changed in this iteration, e.g., one parameter is unused in first iteration, but then got "
    "used in the second iteration. this is not compatible with static_graph set to True."
)
NOT_IN_LOSS = "This error indicates that your module has parameters that were not used in producing loss. "
FIND_UNUSED = (
    "You can enable unused parameter detection by passing the keyword argument `find_unused_parameters=True` to "
    "`torch.nn.parallel.DistributedDataParallel`, and by \n"
)
FINDS_UNUSED = (
    "Since `find_unused_parameters=True` is enabled, this likely  means that not all `forward` outputs participate in "
    "computing loss. You can fix this by "
)
OUTPUTS = (
    "making sure all `forward` function outputs participate in calculating loss. \n"
    "If you already have done the above, then the distributed data parallel module wasn't able to locate the output "
    "tensors in the return value of your module's `forward` function. Please include the loss function and the "
    "structure of the return value of `forward` of your module when reporting this issue (e.g. list, dict, iterable)."
)
NAMES = (
    "\n In addition, you can set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL to print "
    "out information about which particular parameters did not receive gradient on this rank as part of this error"
)
TWICE = (
    "Expected to mark a variable ready only once. This error is caused by one of the following reasons: 1) Use of a "
    "module parameter outside the `forward` function. Please make sure model parameters are not shared across multiple "
    "concurrent forward-backward passes. or try to use _set_static_graph() as a workaround if this module graph does "
    "not change during training loop.2) Reused parameters in multiple reentrant backward passes. For example, if you "
    "use multiple `checkpoint` functions to wrap the same part of your model, it would result in the same set of "
    "parameters been used by different reentrant backward passes multiple times, and hence marking a variable ready "
    "multiple times. DDP does not support such use cases in default. You can try to use _set_static_graph() as a "
    "workaround if your module graph does not change over iterations.\n"
)
STATIC_LATE = (
    "set_static_graph() should be called before training loop starts and after DistributedDataParallel is constructed."
)
UNDEFINED = (
    "Encountered gradient which is undefined, but still allreduced by DDP reducer. This indicates a bug in DDP "
    "implementation, please report a bug with a repro to PyTorch."
)
FIRST_UNSYNCED = (
    "expect_autograd_hooks_ INTERNAL ASSERT FAILED: the first backward pass of a static graph is within no_sync()"
)
NONE_UNUSED = (
    "find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters in the "
    "forward pass. This flag results in an extra traversal of the autograd graph every iteration,  which can adversely "
    "affect performance. If your model indeed never has any unused parameters in the forward pass, consider turning "
    "this flag off. Note that this warning may be a false positive if your model has flow control causing later "
    "iterations to have unused parameters."
)


def unfinished(rank: int, missing: dict[int, str], static: bool, finds_unused: bool) -> str:
    """Return the message for a round that never ended on this rank of the module's group. The `missing` parameters, by
    index, got no gradient.
    """
    why = CHANGED if static else NOT_IN_LOSS + (FINDS_UNUSED if finds_unused else FIND_UNUSED) + OUTPUTS
    indices = f"\nParameter indices which did not receive grad for rank {rank}: {' '.join(map(str, missing))}"
    if c10d.get_debug_level() == c10d.DebugLevel.OFF:
        return UNFINISHED + why + indices + NAMES
    names = ", ".join(map(_as_torch, reversed(missing.values())))  # mostly the order of torch's map of names
    return f"{UNFINISHED}{why}\nParameters which did not receive grad for rank {rank}: {names}{indices}"


def _as_torch(name: str) -> str:
    """Return a parameter's name as torch's reducer gives it: that of its module, a dot, and its own."""
    return name if "." in name else f".{name}"


def marked_twice(index: int, name: str) -> str:
    """Return the message for a parameter with a second gradient in one backward pass."""
    return (
        f"{TWICE}Parameter at index {index} with name {_as_torch(name)} has been marked as ready twice. This means "
        "that multiple autograd engine  hooks have fired for this particular parameter during this iteration."
    )


def other_type(param: torch.Tensor, grad: torch.Tensor) -> str:
    """Return the message for a gradient of another type than its parameter, as `grad_dtype` can make it."""
    expected, got = (str(tensor.type()).rpartition(".")[2].removesuffix("Tensor") for tensor in (param, grad))
    return f"Expected {expected}, got {got}"
