"""Messages between the workers and the coordinator of an MLfabric job (MLfabric, section 4).

Rule of this file: values, their limits and their bytes. coordination.py and conversation.py decide when to send them.

A message is its length (four bytes, big-endian) and one JSON object with its `kind`. Everything received has a limit,
so a sender cannot use up the coordinator's memory. Unknown messages are refused.

A worker numbers its own updates and never uses a number twice, not even after a restart. The coordinator numbers the
sums. Worker, number and `sum` together identify an update or a sum, so a message may be sent twice and counts once.
Sizes are in bytes, times in seconds, rates in bytes per second. A version is the number of updates applied to the
server's model.

    worker                                coordinator
    Hello  (no proof)             ->
                                  <-      Challenge     also in answer to anything else from an unknown connection
    Hello  (proof)                ->
                                  <-      Welcome
    Ask                           ->
                                  <-      Wait          the update is queued; again for each repeated Ask
                                  <-      Grant         send it to the server or an aggregator, or drop it
    Done                          ->
                                  <-      Applied       also to all workers whose updates are in a sum

An aggregator gets Collect with the updates to sum. Once it has them all, it asks for the sum and proceeds as with an
update of its own. Lost withdraws a grant: the update was lost, for instance with its aggregator.

With bounded staleness a worker sends Clock after each round and gets Proceed: wait, or read the model. When it ends, it
sends Bye and gets Parting. With a replica a worker gets Copy, hands the model to the replica, and sends Copied.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from prophet_scheduler.core.errors import UserError

MOST_REQUEST_BYTES = 4096
"""Maximum bytes of a message to the coordinator; real ones are less than a tenth of it."""
MOST_ANSWER_BYTES = 1 << 20
"""Maximum bytes of a message to a worker: Collect may name thousands of updates."""
MOST_REASON = 200
"""Maximum characters of a reason."""
MOST_WORKERS = 1 << 20
"""Limit of worker numbers, exclusive."""
LENGTH_BYTES = 4
"""Bytes of the length before each message."""

T = TypeVar("T")
# Integers up to 2**53 are exact as JSON numbers everywhere. A coordinator counts up from its first version and stays
# within that. The limit of norms is far above 32-bit floats, and sums of their squares are still finite.
_Whole: TypeAlias = Annotated[int, Field(ge=0, le=2**53)]
_FirstVersion: TypeAlias = Annotated[int, Field(ge=0, le=2**52)]
_Size: TypeAlias = Annotated[int, Field(ge=0, le=2**44)]
_Norm: TypeAlias = Annotated[float, Field(ge=0, le=1e100)]
_Seconds: TypeAlias = Annotated[float, Field(ge=0)]
_Worker: TypeAlias = Annotated[int, Field(ge=0, lt=MOST_WORKERS)]
_Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
_Address: TypeAlias = Annotated[str, Field(pattern=r"^[^\s]{1,256}:[0-9]{1,5}$")]
_Rate: TypeAlias = Annotated[float, Field(ge=1, le=1e15)]
_Proof: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}$")]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class _Item(_Message):
    """Message about an update of this worker or, with `sum`, about the sum of that number."""

    update: _Whole
    sum: bool = False


class _Measured(_Item):
    """Message with the model version from which an update was computed (v(g) of Eq. 9), and the update's norm. Both are
    meaningless for a sum.
    """

    version: _Whole = 0
    norm: _Norm = 1.0


class Hello(_Message):
    """First message of a connection: the worker's identity.

    `incarnation` differs between two starts of a worker: a reconnect keeps its updates, a restart does not. `node`
    names the NIC. `version` is the newest that the worker knows, and `epoch` the coordinator it has it from; None if
    from none. `sums_at` is where it sums others' updates; None if it neither sums nor sends updates to be summed.
    `workers` is the job's number of workers, `staleness` the rounds by which one may lead the slowest: None for any, 0
    in step. `replicates`: it can hand copies of the model to a replica. `proof` is `prove`'s, empty before a Challenge.
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


class Ask(_Measured):
    """Request to send an update of `size_bytes`. For a sum it means that all its updates have arrived."""

    kind: Literal["ask"] = "ask"
    size_bytes: _Size = 0


class Done(_Measured):
    """Report that the server has applied the whole update of `size_bytes`, with a grant or without (arrival order)."""

    kind: Literal["done"] = "done"
    size_bytes: _Size


class Beat(_Message):
    """Heartbeat of a worker that has nothing else to send, or news of `up`, the available rate of its node's uplink."""

    kind: Literal["beat"] = "beat"
    up: _Rate | None = None


class Clock(_Message):
    """Progress with bounded staleness: `rounds` finished and `models` read, the first ones included. If the two are
    equal, the worker waits to read the next model.
    """

    kind: Literal["clock"] = "clock"
    rounds: _Whole
    models: _Whole


class Copied(_Message):
    """Report that the replica has stored the copy or, with `reason`, why it has not."""

    kind: Literal["copied"] = "copied"
    number: _Whole
    reason: Annotated[str, Field(max_length=MOST_REASON)] = ""


class Bye(_Message):
    """End of the worker: its grants are released at once."""

    kind: Literal["bye"] = "bye"


class Challenge(_Message):
    """Answer to an unknown connection: send Hello with a proof over `nonce`. Nothing has changed."""

    kind: Literal["challenge"] = "challenge"
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Welcome(_Message):
    """Admission of the worker; `version` is the current one. A coordinator that lost its state has another `epoch`:
    the worker must ask again for every open update.
    """

    kind: Literal["welcome"] = "welcome"
    epoch: _Whole
    version: _Whole


class Wait(_Item):
    """Acknowledgement of an Ask: the update is queued."""

    kind: Literal["wait"] = "wait"


class Grant(_Item):
    """Decision about an update or a sum, at the current `version`.

    It starts `start_s` seconds after receipt: to the server, or to worker `aggregator` at `address`. If `dropped`, it
    is not sent at all, for `reason`.
    """

    kind: Literal["grant"] = "grant"
    start_s: _Seconds = 0.0
    aggregator: _Worker | None = None
    address: str = ""
    dropped: bool = False
    reason: str = ""
    version: _Whole


class Applied(_Item):
    """Report that an update is in the model, which now has `version`. `delay` is that of Eq. 9: this version less the
    version from which the update was computed. Without a grant it may exceed the bound; for a sum it is 0.
    """

    kind: Literal["applied"] = "applied"
    version: _Whole
    delay: _Whole = 0


class Collect(_Message):
    """Order to sum updates: `members` are pairs of worker and update, perhaps with this worker's own.

    A later Collect of the same `number`, with fewer members, replaces it. Without members nothing is left to sum.
    """

    kind: Literal["collect"] = "collect"
    number: _Whole
    members: tuple[tuple[_Worker, _Whole], ...]


class Copy(_Message):
    """Order to read the model, starting now, and hand it to the replica as copy `number`. `bound` is the maximum lag
    of the replica, as a norm.
    """

    kind: Literal["copy"] = "copy"
    number: _Whole
    bound: Annotated[float, Field(gt=0)]


class Lost(_Message):
    """Withdrawal of an update for `reason`: it is not counted, and nobody waits for it."""

    kind: Literal["lost"] = "lost"
    update: _Whole
    reason: str


class Denied(_Message):
    """Refusal of a message, which changed nothing. `update` is the update or, with `sum`, the sum it was about."""

    kind: Literal["denied"] = "denied"
    text: str
    update: _Whole | None = None
    sum: bool = False


class Proceed(_Message):
    """Answer to a worker that has finished `rounds`: read the model `now`, or wait for others."""

    kind: Literal["proceed"] = "proceed"
    rounds: _Whole
    now: bool


class Parting(_Message):
    """Answer to Bye: the number of other workers still `working`, and those that have `died`. BytePS's job cannot end
    without the latter.
    """

    kind: Literal["parting"] = "parting"
    working: _Whole
    died: tuple[_Worker, ...] = ()


Request: TypeAlias = Hello | Ask | Done | Clock | Beat | Copied | Bye
"""Messages to the coordinator."""
Answer: TypeAlias = Challenge | Welcome | Wait | Grant | Applied | Collect | Copy | Lost | Denied | Proceed | Parting
"""Messages to a worker."""

_REQUESTS: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
_ANSWERS: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="kind")])


def encode(message: Request | Answer) -> bytes:
    """Return one JSON object in UTF-8 for `decode_request` or `decode_answer`."""
    return message.model_dump_json().encode()


def framed(message: Request | Answer) -> bytes:
    """Return a message as sent: its length, then its text."""
    data = encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def take_frames(received: bytearray, most_bytes: int) -> Iterator[bytes]:
    """Remove all complete messages from `received` and yield them. Raises UserError if one exceeds `most_bytes`."""
    while len(received) >= LENGTH_BYTES:
        end = LENGTH_BYTES + int.from_bytes(received[:LENGTH_BYTES], "big")
        if end > LENGTH_BYTES + most_bytes:
            raise UserError(f"a message of {end - LENGTH_BYTES} bytes; the limit is {most_bytes}")
        if len(received) < end:
            return
        data = bytes(received[LENGTH_BYTES:end])
        del received[:end]
        yield data


def decode_request(data: bytes) -> Request:
    """Return a worker's message. Raises UserError with one line if it is invalid or exceeds a limit."""
    return _decode(_REQUESTS, data)


def decode_answer(data: bytes) -> Answer:
    """Return a coordinator's message. Raises UserError with one line if it is invalid or exceeds a limit."""
    return _decode(_ANSWERS, data)


def _decode(adapter: TypeAdapter[T], data: bytes) -> T:
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "message"
        raise UserError(f"{where}: {first['msg']}"[:MOST_REASON]) from None


def prove(token: str, nonce: str, hello: Hello) -> str:
    """Return the proof that the sender of `hello` has the tenant's token: HMAC-SHA256 (RFC 2104) over nonce and sender.

    Every connection has its own nonce, so a proof is worthless on another.
    """
    who = f"{nonce}|{hello.tenant}|{hello.worker}|{hello.incarnation}|{hello.node}"
    return hmac.new(token.encode(), who.encode(), hashlib.sha256).hexdigest()


def proves(token: str, nonce: str, hello: Hello) -> bool:
    """Return True if `hello` has the right proof. Compares in constant time."""
    return hmac.compare_digest(prove(token, nonce, hello).encode(), hello.proof.encode())
