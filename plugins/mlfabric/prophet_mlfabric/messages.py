"""Messages between the workers and the coordinator of an MLfabric job (MLfabric, section 4).

Rule of this file: values, their limits and their bytes. coordination.py and client.py decide when to send them.

A message is its length (four bytes, big-endian) and one JSON object with its `kind`. Everything received has a limit,
so a sender cannot use up the coordinator's memory. Unknown messages are refused.

A worker numbers its updates and never uses a number twice, not even after a restart. So a message may be sent twice and
counts once. Sizes are in bytes, times in seconds, rates in bytes per second. A version is the number of updates applied
to the server's model.

    worker                                coordinator
    Hello  (no proof)             ->
                                  <-      Challenge     also in answer to anything else from an unknown connection
    Hello  (proof)                ->
                                  <-      Welcome
    Ask                           ->
                                  <-      Wait          the update is queued; again for each repeated Ask
                                  <-      Grant         send it to the server, or drop it
    Done                          ->
                                  <-      Applied

A worker that keeps a replica gets Copy, writes the model to its file, and sends Copied. When a worker ends, it sends
Bye and gets Parting.
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
"""Maximum bytes of a message to a worker."""
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
_Proof: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}$")]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class _Update(_Message):
    """Message about an update of `size_bytes`, computed from this `version` of the model (v(g) of Eq. 9)."""

    update: _Whole
    size_bytes: _Size
    version: _Whole = 0
    norm: _Norm = 1.0


class Hello(_Message):
    """First message of a connection: the worker's identity.

    `incarnation` differs between two starts of a worker: a reconnect keeps its updates, a restart does not. `node`
    names the NIC. `version` is the newest that the worker knows, and `epoch` the coordinator it has it from; None if
    from none. `replicates`: it keeps a replica of the model. `proof` is `prove`'s, empty before a Challenge.
    """

    kind: Literal["hello"] = "hello"
    tenant: _Name
    worker: _Worker
    incarnation: _Whole
    node: _Name
    version: _FirstVersion = 0
    epoch: _Whole | None = None
    replicates: bool = False
    proof: _Proof = ""


class Ask(_Update):
    """Request to send an update."""

    kind: Literal["ask"] = "ask"


class Done(_Update):
    """Report that the server has applied the whole update, with a grant or without (arrival order)."""

    kind: Literal["done"] = "done"


class Copied(_Message):
    """Report that the copy is in the replica or, with `reason`, why it is not."""

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


class Wait(_Message):
    """Acknowledgement of an Ask: the update is queued."""

    kind: Literal["wait"] = "wait"
    update: _Whole


class Grant(_Message):
    """Decision about an update, at the current `version`.

    It starts `start_s` seconds after receipt. If `dropped`, it would exceed the delay bound and is not sent at all.
    """

    kind: Literal["grant"] = "grant"
    update: _Whole
    start_s: _Seconds = 0.0
    dropped: bool = False
    version: _Whole


class Applied(_Message):
    """Report that an update is in the model, which now has `version`. `delay` is that of Eq. 9: this version less the
    version from which the update was computed. Without a grant it may exceed the bound.
    """

    kind: Literal["applied"] = "applied"
    update: _Whole
    version: _Whole
    delay: _Whole = 0


class Copy(_Message):
    """Order to read the model, starting now, for copy `number` of the replica, which may lag by the norm `bound`."""

    kind: Literal["copy"] = "copy"
    number: _Whole
    bound: Annotated[float, Field(gt=0)]


class Denied(_Message):
    """Refusal of a message, which changed nothing. `update` is the update that it was about."""

    kind: Literal["denied"] = "denied"
    text: str
    update: _Whole | None = None


class Parting(_Message):
    """Answer to Bye: the number of other workers still `working`, and those that have `died`. BytePS's job cannot end
    without the latter.
    """

    kind: Literal["parting"] = "parting"
    working: _Whole
    died: tuple[_Worker, ...] = ()


Request: TypeAlias = Hello | Ask | Done | Copied | Bye
"""Messages to the coordinator."""
Answer: TypeAlias = Challenge | Welcome | Wait | Grant | Applied | Copy | Denied | Parting
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
