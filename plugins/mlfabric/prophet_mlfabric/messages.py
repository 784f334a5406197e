"""Messages between the workers and the coordinator of an MLfabric job (MLfabric, section 4).

Rule of this file: values, their limits and their bytes. Who says what when is coordination.py's and conversation.py's.

A message is its length, four bytes with the highest first, and one JSON object whose `kind` says which. A person can
read JSON on the wire, a message is some hundred bytes, and pydantic parses and checks it in one pass of compiled code.
Everything that comes in has a limit, so that nobody can make the coordinator keep much. What is unknown is refused.

A worker numbers its updates itself, and never twice the same, nor after a restart. The coordinator numbers the sums
that a worker is to make. So worker, number and `sum` say what is meant, and every message may be sent twice and counts
once. Sizes are bytes, times seconds, rates bytes per second, versions the number of updates that the server's model has
had.

    worker                                coordinator
    Hello  (no proof)             ->
                                  <-      Challenge     also to anything else from a connection that it does not know
    Hello  (proof)                ->
                                  <-      Welcome
    Ask                           ->
                                  <-      Wait          the update has its place; again for every repeated Ask
                                  <-      Grant         go to the server, go to an aggregator, or drop it
    Done                          ->
                                  <-      Applied       also to all workers whose updates are in a sum

An aggregator gets Collect (which updates it is to sum). It says Ask for the sum when it has them, and so on as for an
update of its own. Lost takes back what was granted: an aggregator that died took the update with it.

Where a worker's lead is bounded, it says Clock after each round and gets Proceed, which tells it to wait or to read the
model. In the end it says Bye, and gets Parting: who is still at work, and who has died.

Where there is a replica, a worker gets Copy, hands it the model, and says Copied.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from prophet_scheduler.core.errors import UserError

MOST_REQUEST_BYTES = 4096
"""Most bytes of a message to the coordinator; none of them needs a tenth of it."""
MOST_ANSWER_BYTES = 1 << 20
"""Most bytes of a message to a worker: Collect may name thousands of updates."""
MOST_REASON = 200
"""Letters of a reason."""
MOST_WORKERS = 1 << 20
"""Worker numbers are below this."""

LENGTH_BYTES = 4
"""Bytes of the length in front of each message."""

T = TypeVar("T")
_Whole: TypeAlias = Annotated[int, Field(ge=0, le=2**53)]
"""Exact as a JSON number everywhere."""
_FirstVersion: TypeAlias = Annotated[int, Field(ge=0, le=2**52)]
"""A coordinator counts on from it, and never comes to the end of `_Whole`."""
_Size: TypeAlias = Annotated[int, Field(ge=0, le=2**44)]
_Norm: TypeAlias = Annotated[float, Field(ge=0, le=1e100)]
"""Far beyond every norm of 32-bit numbers; sums and squares of such norms are numbers, too."""
_Worker: TypeAlias = Annotated[int, Field(ge=0, lt=MOST_WORKERS)]
_Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
_Address: TypeAlias = Annotated[str, Field(pattern=r"^[^\s]{1,256}:[0-9]{1,5}$")]
_Rate: TypeAlias = Annotated[float, Field(ge=1, le=1e15)]
_Proof: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}$")]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Hello(_Message):
    """A connection's first message: who speaks on it.

    `incarnation` differs between two starts of one worker: a reconnection keeps what the worker had, a restart does
    not. `node` names the machine and so the NIC. `version` is the newest that this worker has heard of, from the
    coordinator of that `epoch` if from any; one that was started anew counts on from it. `sums_at` is the address at
    which this worker takes updates of others to sum, as it sends its own to others; None where it does neither.
    `workers` is how many the job has, and `staleness` by how many rounds one may lead the slowest: None for any number,
    0 where all are in step. `replicates`: it can hand copies of the model to a replica. `proof` is `prove`'s answer to
    a Challenge, empty before there was one.
    """

    kind: Literal["hello"] = "hello"
    tenant: _Name
    worker: _Worker
    incarnation: _Whole
    node: _Name
    version: _FirstVersion = 0
    epoch: _Whole | None = None
    sums_at: _Address | None = None
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] | None = None
    staleness: _Whole | None = None
    replicates: bool = False
    proof: _Proof = ""


class _Item(_Message):
    """Message about an update of this worker, or about the sum of the collection of that number."""

    update: _Whole
    sum: bool = False


class Ask(_Item):
    """An update is ready: `size_bytes` of it, computed from `version` of the model (v(g) of Eq. 9), with its norm.

    Of a sum: all of its updates are here, and the other values say nothing.
    """

    kind: Literal["ask"] = "ask"
    size_bytes: _Size = 0
    version: _Whole = 0
    norm: _Norm = 1.0


class Done(_Item):
    """Word that all of it is applied at the server; also of an update that nobody granted (arrival order).

    `size_bytes` is what was pushed; the other values are those of its Ask.
    """

    kind: Literal["done"] = "done"
    size_bytes: _Size
    version: _Whole = 0
    norm: _Norm = 1.0


class NicRates(_Message):
    """Available rates of the NIC of this worker's node, each way, in bytes per second; None for what is not known."""

    kind: Literal["rates"] = "rates"
    up: _Rate | None = None
    down: _Rate | None = None


class Beat(_Message):
    """Sign of life of a worker that has nothing to say."""

    kind: Literal["beat"] = "beat"


class Clock(_Message):
    """Progress of a worker of a job with a bound on leads: `rounds` finished and `models` read, the first ones
    included. Where the two are equal it waits to read the next one."""

    kind: Literal["clock"] = "clock"
    rounds: _Whole
    models: _Whole


class Copied(_Message):
    """End of a copy of the model: the replica keeps it, or it did not get there for `reason`."""

    kind: Literal["copied"] = "copied"
    number: _Whole
    reason: Annotated[str, Field(max_length=MOST_REASON)] = ""


class Bye(_Message):
    """The worker ends: what it was granted is released at once."""

    kind: Literal["bye"] = "bye"


class Challenge(_Message):
    """The coordinator does not know this connection: say Hello with a proof over `nonce`. Nothing was changed."""

    kind: Literal["challenge"] = "challenge"
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Welcome(_Message):
    """The connection is this worker's. `version` is the number of updates applied so far; a coordinator that lost its
    memory has another `epoch` and wants everything open to be asked again."""

    kind: Literal["welcome"] = "welcome"
    epoch: _Whole
    version: _Whole


class Wait(_Item):
    """It was heard of, and is to start in about `start_s` seconds from now, as it looks."""

    kind: Literal["wait"] = "wait"
    start_s: Annotated[float, Field(ge=0)] = 0.0


class Grant(_Item):
    """Decision about an update or a sum.

    It starts `start_s` seconds from receipt: to the server, or to worker `aggregator` at `address`. `dropped`: it is
    not sent at all, for `reason`. `version` is how many updates had been applied.
    """

    kind: Literal["grant"] = "grant"
    start_s: Annotated[float, Field(ge=0)] = 0.0
    aggregator: _Worker | None = None
    address: str = ""
    dropped: bool = False
    reason: str = ""
    version: _Whole


class Applied(_Item):
    """It is part of the model, whose version is now `version`. `delay` is Eq. 9's: that version less the one that the
    update was computed from; of an update that nobody granted it may be more than the bound, and of a sum it is 0."""

    kind: Literal["applied"] = "applied"
    version: _Whole
    delay: _Whole = 0


class Collect(_Message):
    """This worker is to sum updates: `members` are pairs of worker and update, its own may be among them.

    The same `number` again with fewer members replaces it; without any, nothing is left to sum.
    """

    kind: Literal["collect"] = "collect"
    number: _Whole
    members: tuple[tuple[_Worker, _Whole], ...]


class Copy(_Message):
    """This worker is to read the model, from now on, and to hand it to the replica: the copy of that number. `bound` is
    how far the replica may be behind, as a norm."""

    kind: Literal["copy"] = "copy"
    number: _Whole
    bound: Annotated[float, Field(gt=0)]


class Lost(_Message):
    """Withdrawal of an update's grant for `reason`: it is not counted, and nobody waits for it."""

    kind: Literal["lost"] = "lost"
    update: _Whole
    reason: str


class Denied(_Message):
    """A message was refused and changed nothing. `update` is the one or, with `sum`, the sum it was about, if any."""

    kind: Literal["denied"] = "denied"
    text: str
    update: _Whole | None = None
    sum: bool = False


class Proceed(_Message):
    """Answer to a worker that has finished `rounds`: it may read the model now, or has to wait for others."""

    kind: Literal["proceed"] = "proceed"
    rounds: _Whole
    now: bool


class Parting(_Message):
    """Answer to Bye: the number of others that are `working`, and those that `died`, with whom the job cannot end."""

    kind: Literal["parting"] = "parting"
    working: _Whole
    died: tuple[_Worker, ...] = ()


Request: TypeAlias = Hello | Ask | Done | NicRates | Clock | Beat | Copied | Bye
"""Any message to the coordinator."""
Answer: TypeAlias = Challenge | Welcome | Wait | Grant | Applied | Collect | Copy | Lost | Denied | Proceed | Parting
"""Any message to a worker."""

_REQUESTS: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
_ANSWERS: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="kind")])


def encode(message: Request | Answer) -> bytes:
    """Return one JSON object in UTF-8, for `decode_request` or `decode_answer`."""
    return message.model_dump_json().encode()


def framed(message: Request | Answer) -> bytes:
    """Return a message as it travels: its length and its text."""
    data = encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def take_frames(received: bytearray, most_bytes: int) -> Iterator[bytes]:
    """Takes all whole messages out of what was received. Raises UserError for one of more than `most_bytes`."""
    while len(received) >= LENGTH_BYTES:
        end = LENGTH_BYTES + int.from_bytes(received[:LENGTH_BYTES], "big")
        if end > LENGTH_BYTES + most_bytes:
            raise UserError(f"a message of {end - LENGTH_BYTES} bytes; {most_bytes} is the most")
        if len(received) < end:
            return
        data = bytes(received[LENGTH_BYTES:end])
        del received[:end]
        yield data


def decode_request(data: bytes) -> Request:
    """Raises UserError with one line for what is no request or beyond its limits."""
    return _decode(_REQUESTS, data, MOST_REQUEST_BYTES)


def decode_answer(data: bytes) -> Answer:
    """Raises UserError with one line for what is no answer or beyond its limits."""
    return _decode(_ANSWERS, data, MOST_ANSWER_BYTES)


def _decode(adapter: TypeAdapter[T], data: bytes, most_bytes: int) -> T:
    if len(data) > most_bytes:
        raise UserError(f"a message of {len(data)} bytes; {most_bytes} is the most")
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "message"
        raise UserError(f"{where}: {first['msg']}"[:MOST_REASON]) from None


def prove(token: str, nonce: str, hello: Hello) -> str:
    """The proof that the sender of `hello` has the tenant's token: HMAC-SHA256 (RFC 2104) over nonce and sender.

    The token itself never travels, and a proof is worth nothing on another connection, which has another nonce.
    """
    who = f"{nonce}|{hello.tenant}|{hello.worker}|{hello.incarnation}|{hello.node}"
    return hmac.new(token.encode(), who.encode(), hashlib.sha256).hexdigest()


def proves(token: str, nonce: str, hello: Hello) -> bool:
    """Return True if `hello` has the right proof, compared in a time that says nothing of how far it is right."""
    return hmac.compare_digest(prove(token, nonce, hello).encode(), hello.proof.encode())
