"""The MXNet front end: gradients named to the scheduler in forward order.

Rule of this file: what a Gluon job needs beside the queues, which is little. MXNet's dependency engine hands
BytePS each gradient when it has been computed, and starts each operator when the parameters it reads are there, so
there is no barrier to remove. Two things stand between that and an early forward pass:

- Which gradient is more urgent. BytePS's DistributedTrainer sorts parameters by name (dense10 before dense1, all of a
  ResNet's batch norms before its stages) and passes minus the index as the priority. Here a gradient's id is its
  parameter's place in the dict the trainer was given, which is the order of registration and usually of the forward
  pass. Names, and so BytePS's keys, stay as they are.
- What is updated together. MXNet's SGD updates up to four parameters in one operator, which waits for all four
  gradients. Here it takes one at a time, with the same operator, so the bits are the same. LARS and LAMB keep their
  aggregation: one parameter at a time they would compute in another way.

Gradients are not fused: each belongs to MXNet's memory and dependencies, from which they travel.
"""

from __future__ import annotations

import functools
from typing import Any

from prophet.plugins.byteps import hook

_GRADIENT = "gradient_"


def install(bps: Any, fusion: bool = True) -> None:
    """Prepares `bps`, the module byteps.mxnet, for a job that is scheduled. `fusion` has no effect here."""
    from mxnet import optimizer as optimizers

    hook.set_identity("priority")
    places: dict[str, int] = {}
    push_pull = bps.byteps_push_pull
    create = bps.DistributedTrainer.__init__

    @functools.wraps(push_pull)
    def placed_push_pull(
        tensor: Any, version: int = 0, priority: int = 0, name: str | None = None, is_average: bool = True
    ) -> None:
        # Priority 0 is for what somebody waits for, such as a broadcast of parameters; gradient 0 has -1.
        if name is not None and name.startswith(_GRADIENT):
            priority = -places.get(name, -priority) - 1
        push_pull(tensor, version=version, priority=priority, name=name, is_average=is_average)

    @functools.wraps(create)
    def placed_create(self: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        create(self, params, *args, **kwargs)
        place = {id(parameter): number for number, parameter in enumerate(params.values())}
        places.update((f"{_GRADIENT}{index}", place[id(parameter)]) for index, parameter in enumerate(self._params))
        if isinstance(self._optimizer, optimizers.SGD) and self._optimizer.aggregate_num > 1:
            self._optimizer.aggregate_num = 1

    bps.byteps_push_pull = placed_push_pull
    # In place: BytePS's own methods find the class by its name.
    bps.DistributedTrainer.__init__ = placed_create
