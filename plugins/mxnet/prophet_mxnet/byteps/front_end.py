"""The MXNet front end: removes the obstacles that keep a Gluon job from overlapping transfers with computing.

Rule of this file: byteps.mxnet.DistributedTrainer and the tensors that it hands to BytePS. There is no barrier to
remove here: MXNet's dependency engine starts each operator when its inputs are ready. So a gradient can leave while
backward still runs, and a layer can start while others wait for their updates. Three things prevented both:

- The trainer scales each gradient with an operator that asks MXNet for scratch memory. There are few pieces of it, and
  their users take turns in the order in which they were scheduled. So the operator waited for the whole backward pass,
  and no gradient left before the last one was ready. Here `broadcast_mul`, which needs no scratch memory, computes the
  same product, bit for bit.
- MXNet's SGD updates up to four parameters in one operator, which waits for the averages of all four. Here it takes one
  at a time, with the same operator, so the bits are the same. LARS and LAMB keep their aggregation: with one parameter
  at a time they would compute something else.
- The trainer takes a dict of parameters, sorts it by name (dense10 before dense1, a ResNet's batch norms before its
  stages) and passes minus the index as the priority. Here a gradient's id is its parameter's place in the dict, which
  has the order of registration, usually that of the forward pass. Gradients are handed over in reverse, as backward
  makes them.

Each gradient has two keys, used in turn: a worker that runs ahead must not overwrite at the server a sum that a slower
worker has yet to receive (docs/decisions/two-keys-a-gradient.md). For this, no push may start before the last pull of
the same gradient has finished, which MXNet's dependencies ensure.

BytePS compresses each partition separately, so a job that compresses gets BytePS's own partition size (partition.py).

Gradients are not fused: each travels from MXNet's own memory, which its dependencies guard. BytePS cuts all gradients
by one size (names.py), taken from the cut that the workers agree on (cutting.py). A round is a step of a trainer. A
program that calls `allreduce_grads()` and `update()` instead of `step()` reads the averages in between, for example to
clip gradients by the norm of all. So its iterations are assumed to wait for all averages
(prophet_scheduler/learn/barrier.py).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np

from prophet_byteps import agreement, partition
from prophet_byteps.cutting import CutBoard, CutControl
from prophet_byteps.iterations import OptimizerIterations
from prophet_mxnet.byteps.ending import wait_for_mxnet_first
from prophet_mxnet.byteps.exchange import watched
from prophet_mxnet.byteps.names import Names
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut
from prophet_scheduler.frontends.notices import logger

_GRADIENT = "gradient_"
_EXACT = (np.float32, np.float64)
"""Types in which `broadcast_mul` by a rounded factor gives the same result as MXNet's scaling by a number."""
_HALF = np.dtype(np.float16)


def install(bps: Any, fusion: bool = True, agreement: Any = agreement, board: CutBoard | None = None) -> None:
    """Prepare `bps`, the module byteps.mxnet, for a job that is scheduled. `fusion` has no effect here.

    `agreement` ends the job if workers would send different tensors: the module, or an object with its functions.
    `board` has the wanted partition size; without a board the size stays. Raises RuntimeError, and replaces nothing, if
    this BytePS has another trainer than the one known here.
    """
    trainer = bps.DistributedTrainer
    if not hasattr(bps, "Compression") or "step" not in vars(trainer):
        raise RuntimeError("in MXNet a BytePS without compression, as before 0.2.5, scales gradients differently")
    _FrontEnd(bps, agreement, board).put_in_place()


class _FrontEnd:
    """Replacements for BytePS's functions and its trainer's methods; each calls its original."""

    def __init__(self, bps: Any, agreement: Any, board: CutBoard | None) -> None:
        trainer = bps.DistributedTrainer
        self._bps = bps
        self._agreement = agreement
        self._board = CutBoard(Cut.uniform(MOST_BLOCK_BYTES)) if board is None else board
        self._push_pull = watched(bps.byteps_push_pull)
        self._declare, self._resume = bps.byteps_declare_tensor, bps.resume
        self._create, self._init_params = trainer.__init__, trainer._init_params
        self._allreduce, self._allreduce_alone = trainer._allreduce_grads, trainer.allreduce_grads
        self._names = Names(self._declare, lambda: partition.Number.of(bps), mx.nd.waitall)
        self._trainers = itertools.count()
        self._largest_sent = 0
        """Bytes of the largest tensor sent so far."""
        self._lives = 0
        """Number of times BytePS was resumed."""

    def put_in_place(self) -> None:
        """Install the replacements. BytePS's own methods look up the class and the functions by name."""
        bps, trainer = self._bps, self._bps.DistributedTrainer
        bps.byteps_push_pull = _in_place_of(self._push_pull, self.push_pull)
        bps.byteps_declare_tensor = _in_place_of(self._declare, self.declare)
        bps.resume = _in_place_of(self._resume, self.resume)
        wait_for_mxnet_first(bps, mx.nd.waitall)
        trainer.__init__ = _in_place_of(self._create, self.create)
        trainer._init_params = _in_place_of(self._init_params, self.init_params)
        trainer._allreduce_grads = _in_place_of(self._allreduce, self.allreduce)
        trainer.allreduce_grads = _in_place_of(self._allreduce_alone, self.allreduce_alone)

    # BytePS's functions.

    def push_pull(
        self, tensor: Any, version: int = 0, priority: int = 0, name: str | None = None, is_average: bool = True
    ) -> None:
        self._largest_sent = max(self._largest_sent, _size_bytes(tensor))
        # Priority 0 is for transfers that somebody waits for, such as a broadcast of parameters; gradient 0 has -1.
        if name is not None and name.startswith(_GRADIENT):
            priority -= 1
        if name is not None:
            name = self._names.current(name, _size_bytes(tensor))
        self._push_pull(tensor, version=version, priority=priority, name=name, is_average=is_average)

    def declare(self, name: str, **compression: Any) -> None:
        if compression:
            self._names.stay = True
            partition.give_back(self._bps, self._largest_sent)
        self._declare(name, **compression)

    def resume(self, *args: Any, **kwargs: Any) -> Any:
        result = self._resume(*args, **kwargs)
        self._lives += 1
        return result

    # The trainer's methods.

    def create(self, trainer: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        """Create a trainer that sends gradients in forward order and makes updates one at a time."""
        self._create(trainer, params, *args, **kwargs)
        trainer._prophet = None
        number = next(self._trainers)
        trainer._prophet_topic = f"trainer {number}"
        self._agreement.reserve(trainer._prophet_topic)
        trainer._prophet_rounds = self._rounds_of(number)
        try:
            handover = _Handover(params, trainer._params)
            for name in handover.odd_names:
                self._declare(name)
            trainer._prophet = handover
        except Exception as error:
            logger.warning("Prophet uses the order of BytePS's trainer: %s: %s", type(error).__name__, error)
        if isinstance(trainer._optimizer, mx.optimizer.SGD) and trainer._optimizer.aggregate_num > 1:
            trainer._optimizer.aggregate_num = 1

    def init_params(self, trainer: Any) -> None:
        """Prepare the first step, after the first forward pass: shapes are known, and nothing has been sent yet."""
        if trainer._prophet_topic is not None:
            topic, trainer._prophet_topic = trainer._prophet_topic, None
            half = _halves(self._bps, trainer)
            self._agreement.propose(topic, _layout(trainer._params, half))
            self._agreement.settle(topic)
            trainer._prophet_rounds.start(trainer._prophet.in_order if trainer._prophet else trainer._params, half)
        self._init_params(trainer)

    def allreduce(self, trainer: Any) -> None:
        """Run a round: hand over all gradients."""
        trainer._prophet_rounds.begin(self._lives)
        self._hand_over(trainer)
        trainer._prophet_rounds.end()

    def allreduce_alone(self, trainer: Any) -> None:
        """Run a round without an update: the program is going to read the averages."""
        trainer._prophet_rounds.looked_at = True
        self._allreduce_alone(trainer)

    def _rounds_of(self, number: int) -> _Rounds:
        """Return the rounds of the program's trainer `number`, counted from 0."""
        board, group, control = self._board, self._agreement.active(), None
        if board.fixed is None and group is not None and not self._names.stay:
            control = CutControl(board, number, group.exchange, group.rank, group.workers, self._bps.local_size())
            control.declare()
        return _Rounds(control, self._names, OptimizerIterations(board, number))

    def _hand_over(self, trainer: Any) -> None:
        """Hand over all gradients in the order in which backward makes them."""
        bps, handover = self._bps, trainer._prophet
        gradients = handover.gradients() if handover else []
        if not gradients or not all(_plain(bps, trainer, parameter) for _, _, parameter in gradients):
            self._allreduce(trainer)
            return
        for gradient_id, index, parameter in gradients:
            gradient = parameter._grad[0]
            factor = handover.factor(1.0 / trainer._scale / trainer._bps_size, gradient)
            mx.nd.broadcast_mul(gradient, factor, out=gradient)
            name = self._names.current(handover.next_name(index), _size_bytes(gradient))
            self._push_pull(gradient, name=name, priority=-gradient_id - 1, is_average=False)


def _in_place_of(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, named and documented like `original`, that calls `replacement`; as a method, with `self`."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return replacement(*args, **kwargs)

    return function


class _Rounds:
    """Steps of one trainer, and the partition size of each. With `control` None the size stays."""

    def __init__(self, control: CutControl | None, names: Names, iterations: OptimizerIterations) -> None:
        self._control = control
        self._names = names
        self._iterations = iterations
        self._sizes: list[int] = []
        self._life = 0
        self.looked_at = False
        """True if the program reads the averages of this round before it applies them."""

    def start(self, parameters: list[Any], half: bool = False) -> None:
        """Set the first partition size, before the first step sends anything. `parameters` are in forward order."""
        self._iterations.half = half
        if self._control is not None:
            self._sizes = [_travelling_bytes(each, half) for each in parameters if each.grad_req != "null"]
            self._control.ask(self._sizes)
            self._cut(self._control.first())

    def begin(self, life: int) -> None:
        """Begin a step, before its first gradient. `life`: number of times BytePS was resumed."""
        control = self._control
        if control is None:
            return
        if life != self._life:
            self._life = life
            group = agreement.active()
            if group is not None:
                control.restart(group.rank, group.workers)
            control.ask(self._sizes)
            self._cut(control.first())
        else:
            self._cut(control.round_begins())

    def end(self) -> None:
        """End a step, after all of its gradients have been handed over."""
        self._iterations.sent()
        self._iterations.ended(waited=self.looked_at)
        self.looked_at = False
        if self._control is not None:
            self._control.round_ends()

    def _cut(self, cut: Cut | None) -> None:
        if cut is not None:
            self._names.resize(cut.typical_bytes(sum(self._sizes)))


class _Handover:
    """Order of one trainer's gradients, and the factors that scale them.

    `registered` are the parameters that the program gave the trainer, `sorted_parameters` the trainer's list of them;
    BytePS's names contain places in this list. `in_order` are the parameters in forward order. `odd_names` are the
    names in every other round; the rest of the rounds have BytePS's own.
    """

    def __init__(self, registered: Any, sorted_parameters: list[Any]) -> None:
        self.in_order = list(registered.values() if hasattr(registered, "values") else registered)
        ids = {id(parameter): number for number, parameter in enumerate(self.in_order)}
        indexed = [(ids[id(parameter)], index, parameter) for index, parameter in enumerate(sorted_parameters)]
        self._last_first = sorted(indexed, key=lambda entry: -entry[0])
        names = [(f"{_GRADIENT}{index}", f"{_GRADIENT}{index}.odd") for index in range(len(sorted_parameters))]
        self._names = [itertools.cycle(pair) for pair in names]
        self.odd_names = [odd for _, odd in names]
        self._factors: dict[tuple[Any, ...], Any] = {}

    def next_name(self, index: int) -> str:
        """Return the name in BytePS of a gradient in its next round."""
        return next(self._names[index])

    def gradients(self) -> list[tuple[int, int, Any]]:
        """Return (gradient id, index in BytePS's names, parameter) of each gradient, in the order of backward."""
        return [entry for entry in self._last_first if entry[2].grad_req != "null"]

    def factor(self, value: float, gradient: Any) -> Any:
        """Return `value` as an array that broadcasts over `gradient`: its type, device and number of dimensions."""
        key = (value, gradient.dtype, gradient.context, gradient.ndim)
        if key not in self._factors:
            number = np.full((1,) * gradient.ndim, value, gradient.dtype)
            self._factors[key] = mx.nd.array(number, ctx=gradient.context, dtype=gradient.dtype)
        return self._factors[key]


def _size_bytes(tensor: Any) -> int:
    return int(tensor.size) * np.dtype(tensor.dtype).itemsize


def _travelling_bytes(parameter: Any, half: bool) -> int:
    """Return the bytes of a gradient on the wire. With `half`, floating-point numbers travel in half precision."""
    dtype = np.dtype(parameter.dtype)
    return int(np.prod(parameter.shape)) * (_HALF if half and np.issubdtype(dtype, np.floating) else dtype).itemsize


def _halves(bps: Any, trainer: Any) -> bool:
    """Return True if gradients travel in half precision: with BytePS's compression fp16, and none in its core."""
    rounding = type(getattr(bps.Compression, "fp16", None))
    learned = [parameter for parameter in trainer._params if parameter.grad_req != "null"]
    return bool(learned) and all(
        type(trainer._intra_compressors[each.name]) is rounding and not _compressed(each) for each in learned
    )


def _compressed(parameter: Any) -> bool:
    """Return True if BytePS's core compresses the gradient, which attributes of the parameter show."""
    return any(name.startswith("byteps_") for name in vars(parameter))


def _layout(parameters: list[Any], half: bool) -> str:
    """Return, as text, what must be the same on all workers: the parameters' number, order, shapes and types, which of
    them are trained, and how their gradients travel.
    """
    words = []
    for parameter in parameters:
        shape = "x".join(str(length) for length in parameter.shape or ())
        what = f"{np.dtype(parameter.dtype).name} {parameter.grad_req}{' compressed' * _compressed(parameter)}"
        words.append(f"{shape} {what}")
    return f"{len(words)} parameters{' in half precision' * half}: {', '.join(words)}"


def _plain(bps: Any, trainer: Any, parameter: Any) -> bool:
    """Return True if the gradient is sent uncompressed, is dense, and has a type that scales exactly."""
    return (
        type(trainer._intra_compressors[parameter.name]) is type(bps.Compression.none)
        and not _compressed(parameter)
        and parameter._grad_stype == "default"
        and parameter._grad[0].dtype in _EXACT
    )
