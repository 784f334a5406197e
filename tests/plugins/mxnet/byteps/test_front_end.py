"""The MXNet front end against a stand-in for byteps.mxnet: the same trainer, and a network that answers at once."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from mxnet.base import _LIB, check_call

from prophet_byteps import agreement, partition
from prophet_byteps.cutting import CutBoard
from prophet_mxnet.byteps import exchange, front_end
from prophet_scheduler.core.cut import RECUT_ROUNDS, Cut
from prophet_scheduler.learn.barrier import LEAST_ALIKE
from support.exchanges import QuietExchange

BLOCKED_S = 120.0
"""Only a failing test waits that long."""


class NoCompression:
    def compress(self, tensor: Any) -> tuple[Any, None]:
        return tensor, None

    def decompress(self, tensor: Any, context: None) -> Any:
        return tensor


class HalfPrecision(NoCompression):
    def compress(self, tensor: Any) -> tuple[Any, None]:
        return tensor.astype("float16"), None

    def decompress(self, tensor: Any, context: None) -> Any:
        return tensor.astype("float32")


def stand_in() -> Any:
    """byteps.mxnet as the front end sees it: names, order, scaling and priorities are BytePS 0.2.5's."""
    compression = SimpleNamespace(none=NoCompression(), fp16=HalfPrecision())
    bps = SimpleNamespace(Compression=compression, pushed=[], declared=[])
    bps.resume = lambda *args: args
    bps.init = bps.shutdown = bps.suspend = lambda *args: None
    bps.local_size = lambda: 1
    bps.byteps_declare_tensor = lambda name, **compression: bps.declared.append(name)

    def byteps_push_pull(
        tensor: Any, version: int = 0, priority: int = 0, name: str | None = None, is_average: bool = True
    ) -> None:
        bps.pushed.append((name, priority))
        # Add other workers' part. Like BytePS's operator, this runs when the gradient is there, without scratch memory.
        mx.nd.broadcast_add(tensor, mx.nd.ones((1,) * tensor.ndim, dtype=tensor.dtype), out=tensor)

    class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc,name-defined]
        compressor: Any = bps.Compression.none

        def __init__(self, params: Any, optimizer: str, optimizer_params: dict[str, float]) -> None:
            ordered = [params[key] for key in sorted(params.keys())]
            super().__init__(ordered, optimizer, optimizer_params, kvstore=None)
            self._bps_size = 3
            self._intra_compressors = {parameter.name: self.compressor for parameter in ordered}

        def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
            self._scale = batch_size
            super().step(batch_size, ignore_stale_grad)

        def _allreduce_grads(self) -> None:
            for i, param in enumerate(self._params):
                if param.grad_req != "null":
                    gradient = param._grad[0]
                    mx.nd._internal._mul_scalar(gradient, 1.0 / self._scale / self._bps_size, out=gradient)
                    compressed, context = self._intra_compressors[param.name].compress(gradient)
                    bps.byteps_push_pull(compressed, is_average=False, name=f"gradient_{i}", priority=-i)
                    param._grad[0][:] = self._intra_compressors[param.name].decompress(compressed, context)

    bps.byteps_push_pull = byteps_push_pull
    bps.DistributedTrainer = DistributedTrainer
    return bps


@pytest.fixture
def stock() -> Any:
    return stand_in()


@pytest.fixture
def bps() -> Any:
    module = stand_in()
    front_end.install(module)
    return module


@pytest.mark.parametrize("lacking", ["compression", "step"])
def test_a_trainer_that_scales_otherwise_stays_as_it_is(stock: Any, lacking: str) -> None:
    """BytePS before 0.2.5 had such a trainer; a step under Prophet would end in an AttributeError."""
    if lacking == "compression":
        del stock.Compression
    else:
        del stock.DistributedTrainer.step
    was = dict(vars(stock.DistributedTrainer))
    with pytest.raises(RuntimeError, match="scales gradients differently"):
        front_end.install(stock)
    assert vars(stock.DistributedTrainer) == was


class Job:
    """A network of twelve layers of a kind (dense10 sorts before dense2) and its trainer."""

    widths = (6, *[7] * 10, 2)

    def __init__(self, bps: Any, optimizer: str = "sgd", **more: float) -> None:
        mx.random.seed(3)
        self.net = mx.gluon.nn.HybridSequential(prefix="net_")
        with self.net.name_scope():
            for width in self.widths:
                self.net.add(mx.gluon.nn.Dense(width, activation="tanh"))
        self.net.initialize(mx.init.Xavier())
        self.input = mx.nd.random.normal(shape=(5, 4))
        self.net(self.input)
        self.trainer = bps.DistributedTrainer(
            self.net.collect_params(), optimizer, {"learning_rate": 0.1, "wd": 0.01, **more}
        )

    @property
    def parameters(self) -> list[Any]:
        return list(self.net.collect_params().values())

    def backward(self) -> None:
        with mx.autograd.record():
            loss = self.net(self.input).square().sum()
        loss.backward()

    def train(self, steps: int) -> list[Any]:
        for _ in range(steps):
            self.backward()
            self.trainer.step(7)
        return [parameter.data().asnumpy() for parameter in self.parameters]


def test_ids_are_places_in_forward_order_and_names_are_bytepss(bps: Any, stock: Any) -> None:
    job = Job(bps)
    job.train(1)
    parameters = job.parameters
    assert [priority for _, priority in bps.pushed] == [-place - 1 for place in reversed(range(24))]
    in_byteps = sorted(parameter.name for parameter in parameters)
    assert [name for name, _ in bps.pushed] == [
        f"gradient_{in_byteps.index(parameter.name)}" for parameter in reversed(parameters)
    ]
    Job(stock).train(1)
    assert sorted(name for name, _ in bps.pushed) == sorted(name for name, _ in stock.pushed)


def test_rounds_take_turns_between_two_keys(bps: Any) -> None:
    job = Job(bps)
    first = [f"gradient_{index}" for index in range(24)]
    assert bps.declared == [f"{name}.odd" for name in first]
    for names in (first, bps.declared, first):
        bps.pushed.clear()
        job.train(1)
        assert sorted(name for name, _ in bps.pushed) == sorted(names)


def test_a_gradient_that_sits_out_a_round_takes_up_where_it_was(bps: Any) -> None:
    job = Job(bps)
    for requirement in ("write", "null", "write"):
        job.parameters[0].grad_req = requirement
        bps.pushed.clear()
        job.train(1)
        sent = [-priority - 1 for _, priority in bps.pushed]
        assert sent == [place for place in reversed(range(24)) if place or requirement == "write"]
    assert bps.pushed[-1] == ("gradient_1.odd", -1), "its second round"


@pytest.mark.parametrize(
    ("optimizer", "more"),
    [("sgd", {}), ("sgd", {"momentum": 0.9}), ("nag", {"momentum": 0.9}), ("adam", {}), ("lamb", {})],
)
def test_weights_are_stocks_bit_for_bit(bps: Any, stock: Any, optimizer: str, more: dict[str, float]) -> None:
    ours, theirs = Job(bps, optimizer, **more).train(4), Job(stock, optimizer, **more).train(4)
    assert [weights.tobytes() for weights in ours] == [weights.tobytes() for weights in theirs]
    assert bps.pushed[-24:] != stock.pushed[-24:], "or it was stock's own order"


def test_scaling_is_stocks_bit_for_bit_over_the_range_of_floats(bps: Any, stock: Any) -> None:
    noise = np.random.default_rng(5)
    wild = noise.normal(size=100_000) * np.exp2(noise.uniform(-148, 127, size=100_000))
    scaled = []
    for module in (bps, stock):
        parameter = mx.gluon.Parameter("weight", shape=wild.shape)
        parameter.initialize()
        trainer = module.DistributedTrainer({"weight": parameter}, "sgd", {})
        parameter._grad[0][:] = mx.nd.array(wild)
        trainer._scale = 11
        trainer._allreduce_grads()
        scaled.append(parameter._grad[0].asnumpy().tobytes())
    assert scaled[0] == scaled[1]


def test_compressed_gradients_go_bytepss_own_way(bps: Any, stock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bps, stock):
        monkeypatch.setattr(module.DistributedTrainer, "compressor", module.Compression.fp16)
    ours, theirs = Job(bps).train(2), Job(stock).train(2)
    assert [weights.tobytes() for weights in ours] == [weights.tobytes() for weights in theirs]
    assert bps.pushed == [(name, priority - 1) for name, priority in stock.pushed]


def test_gradients_compressed_in_the_core_go_bytepss_own_way(bps: Any, stock: Any) -> None:
    job = Job(bps)
    for parameter in job.parameters:
        parameter.byteps_compressor_type = "onebit"
    job.train(1)
    Job(stock).train(1)
    assert bps.pushed == [(name, priority - 1) for name, priority in stock.pushed]


def test_compression_gives_byteps_its_own_partition_size_before_anything_is_cut(
    bps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(partition, "give_back", lambda module, largest_sent: asked.append(largest_sent))
    bps.byteps_declare_tensor("parameter_0")
    bps.byteps_push_pull(mx.nd.ones((3, 5)), name="parameter_0")
    bps.byteps_push_pull(mx.nd.ones((7,), dtype="float64"), name="parameter_1")
    assert asked == []
    bps.byteps_declare_tensor("gradient_0", byteps_compressor_type="onebit")
    assert asked == [60], "bytes of the largest tensor sent so far"


def test_trainers_tell_each_other_what_they_train_before_the_first_byte(
    bps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[tuple[str, ...]] = []
    for word in ("reserve", "propose", "settle"):
        monkeypatch.setattr(agreement, word, lambda *what, word=word: story.append((word, *what)))
    first, second = Job(bps), Job(bps)
    assert story == [("reserve", "trainer 0"), ("reserve", "trainer 1")]
    story.clear()
    bps.pushed.clear()
    second.train(2)
    assert [entry[:2] for entry in story] == [("propose", "trainer 1"), ("settle", "trainer 1")]
    text = story[0][2]
    assert text.startswith("24 parameters: ")
    assert text.count("7x7 float32 write") == 9
    first.parameters[4].grad_req = "null"
    story.clear()
    first.train(1)
    assert story[0][1] == "trainer 0"
    assert story[0][2].count("null") == 1


def test_a_failure_of_ours_leaves_bytepss_own_way_and_one_warning(
    bps: Any, stock: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("a parameter from nowhere")

    monkeypatch.setattr(front_end, "_Handover", fail)
    with caplog.at_level(logging.WARNING, logger="prophet_scheduler"):
        ours = Job(bps).train(2)
    assert [weights.tobytes() for weights in ours] == [weights.tobytes() for weights in Job(stock).train(2)]
    assert len(caplog.records) == 1
    assert "a parameter from nowhere" in caplog.text


class Alone(QuietExchange):
    """A group of one worker, whose pages come back at once."""

    rank, workers = 0, 1

    def __init__(self) -> None:
        self.exchange = self
        self.sent: list[str] = []

    def declare(self, name: str) -> None:
        assert name.startswith("prophet.cut.")

    def send(self, name: str, page: bytes) -> Callable[[], bytes]:
        self.sent.append(name)
        return lambda: page


@pytest.fixture
def cutting(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A front end whose blocks adapt."""
    group, size = Alone(), partition.Number(ctypes.c_uint32(4096), 4096)
    board = CutBoard(None, lambda sizes: Cut.uniform(4096))
    monkeypatch.setattr(agreement, "active", lambda: group)
    monkeypatch.setattr(partition.Number, "of", lambda bps: size)
    module = stand_in()
    front_end.install(module, board=board)
    return SimpleNamespace(bps=module, board=board, size=size, group=group)


class WideJob(Job):
    """Job in which one gradient has 7,200 bytes, and the others always less than a partition."""

    widths = (60, 30)


def test_a_cut_gives_one_size_and_what_it_cuts_otherwise_another_name(cutting: SimpleNamespace, stock: Any) -> None:
    job = WideJob(cutting.bps)
    in_byteps = sorted(parameter.name for parameter in job.parameters)
    wide = f"gradient_{in_byteps.index(job.parameters[2].name)}"
    sizes: list[int] = []
    wanted = iter([4096, 4096 * 2, 4096 * 3, 4096, 4096 * 2])
    for step in range(5 * RECUT_ROUNDS):
        if step % RECUT_ROUNDS == 1:
            cutting.board.want(Cut.uniform(next(wanted)))
        cutting.bps.pushed.clear()
        weights = job.train(1)
        names = [name for name, _ in cutting.bps.pushed]
        other = ".whole" if cutting.size.value > 4096 else ""
        expected = [f"gradient_{index}{'.odd' * (step % 2)}" for index in range(4)]
        assert sorted(names) == sorted(name + other if name.startswith(wide) else name for name in expected)
        sizes.append(cutting.size.value)
    assert sizes == [4096] * RECUT_ROUNDS * 2 + [8192] * RECUT_ROUNDS + [12288] * RECUT_ROUNDS + [4096] * RECUT_ROUNDS
    assert cutting.board.in_force.recuts == 3
    theirs = WideJob(stock).train(5 * RECUT_ROUNDS)
    assert [weight.tobytes() for weight in weights] == [weight.tobytes() for weight in theirs]


def test_nothing_is_under_way_when_the_size_changes(cutting: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[int] = []
    monkeypatch.setattr(mx.nd, "waitall", lambda: settled.append(cutting.size.value))
    front_end.install(cutting.bps, board=cutting.board)
    job = WideJob(cutting.bps)
    cutting.board.want(Cut.uniform(8192))
    job.train(RECUT_ROUNDS + 1)
    assert settled == [4096], "before, and only once"
    assert cutting.size.value == 8192


def test_a_job_that_compresses_keeps_its_size(cutting: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "give_back", lambda bps, largest_sent: None)
    cutting.bps.byteps_declare_tensor("gradient_9", byteps_compressor_type="onebit")
    job = WideJob(cutting.bps)
    cutting.board.want(Cut.uniform(8192))
    job.train(2 * RECUT_ROUNDS)
    assert (cutting.size.value, cutting.group.sent) == (4096, [])


@pytest.mark.parametrize(
    ("rounds", "compressor", "fixed", "half"),
    [
        (False, "", False, False),
        (True, "", False, True),
        (True, "", True, True),
        (True, "onebit", True, False),
    ],
)
def test_half_precision_is_said_unless_byteps_compresses_further_and_its_bytes_are_what_travels(
    cutting: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    rounds: bool,
    compressor: str,
    fixed: bool,
    half: bool,
) -> None:
    asked: list[list[int]] = []

    def first_cut(sizes: Sequence[int]) -> Cut:
        asked.append(list(sizes))
        return Cut.uniform(4096)

    board, bps = CutBoard(Cut.uniform(8192) if fixed else None, first_cut), stand_in()
    front_end.install(bps, board=board)
    if rounds:
        monkeypatch.setattr(bps.DistributedTrainer, "compressor", bps.Compression.fp16)
    job = WideJob(bps)
    for parameter in job.parameters if compressor else ():
        parameter.byteps_compressor_type = compressor
    job.train(2 * RECUT_ROUNDS)
    assert board.half is half
    width = 2 if half else 4
    assert asked == [[width * count for count in (4 * 60, 60, 60 * 30, 30)]] * (not fixed)
    assert cutting.size.value == 4096
    assert bool(cutting.group.sent) != fixed, "a size that never changes sends nothing"


def test_workers_of_which_one_rounds_to_half_precision_differ(bps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proposed: list[str] = []
    monkeypatch.setattr(agreement, "propose", lambda topic, text: proposed.append(text))
    Job(bps).train(1)
    monkeypatch.setattr(bps.DistributedTrainer, "compressor", bps.Compression.fp16)
    Job(bps).train(1)
    assert proposed[1] == proposed[0].replace(" parameters:", " parameters in half precision:") != proposed[0]


def test_after_a_resume_a_trainer_asks_anew(cutting: SimpleNamespace) -> None:
    job = WideJob(cutting.bps)
    job.train(2)
    assert cutting.group.sent == ["prophet.cut.0.0"]
    cutting.board.want(Cut.uniform(8192))
    assert cutting.bps.resume(1, 1) == (1, 1)
    cutting.size.set(4096)  # BytePS has read its environment
    job.train(1)
    assert cutting.group.sent == ["prophet.cut.0.0"] * 2
    assert cutting.size.value == 8192


def test_while_byteps_opens_keys_the_program_waits_for_others(stock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is in the thread that hands a tensor over, for the program, BytePS's trainer or the front end."""
    seen: list[tuple[str | None, bool]] = []

    def byteps_push_pull(tensor: Any, name: str | None = None, **how: Any) -> None:
        seen.append((name, bool(exchange._callers)))

    stock.byteps_push_pull = byteps_push_pull
    front_end.install(stock)
    stock.byteps_push_pull(mx.nd.ones((2,)), name="parameter_0")
    Job(stock).train(1)
    assert seen == [("parameter_0", True), *((name, True) for name, _ in seen[1:])]
    assert len(seen) == 1 + 24
    assert not exchange._callers


def test_broadcasts_keep_their_priority(bps: Any) -> None:
    bps.byteps_push_pull(mx.nd.ones((2,)), priority=0, name="parameter_0")
    bps.byteps_push_pull(mx.nd.ones((2,)), priority=-4, name="gradient_4")
    assert bps.pushed == [("parameter_0", 0), ("gradient_4", -5)]


# --------------------------------------------------------------------------------------- MXNet's dependencies


class Context(ctypes.Structure):
    _fields_ = [("dev_type", ctypes.c_int32), ("dev_id", ctypes.c_int32)]


CPU_PRIORITIZED = 3  # of MXNet's FnProperty: workers of its own, as for BytePS's operator
EngineFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


@pytest.fixture
def block() -> Iterator[Callable[[Any], None]]:
    """block(array): whatever uses the array from now on waits until the test ends."""
    over = threading.Event()
    keep: list[Any] = []

    def wait(*_: Any) -> None:
        over.wait(BLOCKED_S)

    def block(array: Any) -> None:
        function, context, kind = EngineFunction(wait), Context(1, 0), ctypes.c_int(CPU_PRIORITIZED)
        keep.extend((function, context, kind))
        handles = (ctypes.c_void_p * 1)(array.handle)
        check_call(
            _LIB.MXEnginePushSyncND(
                function, None, None, ctypes.byref(context), None, 0, handles, 1, ctypes.byref(kind), 0, b"blocked"
            )
        )

    yield block
    over.set()
    mx.nd.waitall()


def is_there(array: Any) -> bool:
    """Return True if an array can be read although something else is blocked."""
    thread = threading.Thread(target=array.wait_to_read, daemon=True)
    thread.start()
    thread.join(BLOCKED_S / 4)
    return not thread.is_alive()


def test_a_gradient_leaves_although_backward_still_runs(bps: Any, block: Callable[[Any], None]) -> None:
    job = Job(bps)
    job.train(1)
    job.backward()
    mx.nd.waitall()
    # What remains of backward: an operator that holds scratch memory, of which there are few pieces.
    remaining = mx.nd.ones((3,))
    block(remaining)
    for _ in range(64):
        mx.nd._internal._mul_scalar(remaining, 1.0, out=remaining)
    job.trainer.allreduce_grads()
    assert is_there(job.parameters[-1]._grad[0])


def test_a_program_that_looks_at_averages_before_it_applies_them_waits_for_all(cutting: SimpleNamespace) -> None:
    job = WideJob(cutting.bps)
    job.train(LEAST_ALIKE)
    assert not cutting.board.barrier
    for _ in range(LEAST_ALIKE):
        assert not cutting.board.barrier
        job.backward()
        job.trainer.allreduce_grads()
        job.trainer.update(7)
    assert cutting.board.barrier
    job.train(LEAST_ALIKE)
    assert not cutting.board.barrier


def test_an_update_waits_for_its_own_gradient_only(bps: Any, block: Callable[[Any], None]) -> None:
    job = Job(bps)
    job.train(1)
    job.backward()
    mx.nd.waitall()
    block(job.parameters[-1]._grad[0])
    job.trainer.step(7)
    assert all(is_there(parameter.data()) for parameter in job.parameters[:-1])
