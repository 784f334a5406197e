"""Which connection speaks for which worker of which job, and what is done with those that nobody knows.

Rule of this file: bytes in, addressed answers out, the time passed in; no socket. What a request means to its job is
coordination.py's.

Nothing is kept of a connection until it has proved that it has its tenant's token: the nonce that it has to answer is
made from its name and a secret of this start, so it need not be remembered, and a proof is worth nothing on any other
connection or after a new start.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from prophet.core.errors import UserError
from prophet.mlfabric.coordination import Addressed, Coordination
from prophet.mlfabric.messages import Answer, Challenge, Denied, Hello, decode_request, proves

Outgoing: TypeAlias = tuple[bytes, Answer]
"""To which connection, and what."""


@dataclass(frozen=True)
class Tenant:
    """A job that may use the coordinator: its token, and its coordinator, which shares nothing with the others'."""

    token: str
    coordination: Coordination


class Connections:
    """All tenants' coordinators behind one socket. Not safe for several threads."""

    def __init__(self, tenants: Mapping[str, Tenant], secret: bytes) -> None:
        """`secret` is random and differs between two starts."""
        self._tenants = tenants
        self._secret = secret
        self._speakers: dict[bytes, tuple[str, int]] = {}
        self._connections: dict[tuple[str, int], bytes] = {}
        self.refused = 0
        """Messages that were refused before any job heard of them."""

    def __len__(self) -> int:
        return len(self._speakers)

    @property
    def next_s(self) -> float:
        """When `turn` has something to do, if nothing is received until then."""
        return min((tenant.coordination.next_s for tenant in self._tenants.values()), default=math.inf)

    def receive(self, connection: bytes, data: bytes, now_s: float) -> list[Outgoing]:
        """One message that came in on `connection`."""
        try:
            request = decode_request(data)
        except UserError as error:
            return self._refusal(connection, str(error))
        if isinstance(request, Hello):
            return self._hello(connection, request, now_s)
        speaker = self._speakers.get(connection)
        if speaker is None:
            return [(connection, Challenge(nonce=self._nonce(connection)))]
        name, worker = speaker
        return self._sent(name, self._tenants[name].coordination.receive(worker, request, now_s))

    def turn(self, now_s: float) -> list[Outgoing]:
        """What is due in all jobs."""
        return [
            sent for name, tenant in self._tenants.items() for sent in self._sent(name, tenant.coordination.turn(now_s))
        ]

    def notices(self) -> list[str]:
        """What a person should know of a job, each line once."""
        lines: list[str] = []
        for name, tenant in self._tenants.items():
            lag = tenant.coordination.lag
            if lag is not None and lag.notices:
                lines += [f"{name}: {line}" for line in lag.notices]
                lag.notices.clear()
        return lines

    def _hello(self, connection: bytes, hello: Hello, now_s: float) -> list[Outgoing]:
        tenant = self._tenants.get(hello.tenant)
        if tenant is None:
            return self._refusal(connection, f"tenant {hello.tenant}: there is none of that name here")
        nonce = self._nonce(connection)
        if not hello.proof:
            return [(connection, Challenge(nonce=nonce))]
        if not proves(tenant.token, nonce, hello):
            return self._refusal(connection, f"tenant {hello.tenant}: the token is wrong")
        said = tenant.coordination.join(hello, now_s)
        if any(isinstance(answer, Denied) for _, answer in said):
            return [(connection, answer) for _, answer in said]
        self._bind(connection, (hello.tenant, hello.worker))
        return self._sent(hello.tenant, said)

    def _bind(self, connection: bytes, speaker: tuple[str, int]) -> None:
        """A worker speaks on its newest connection, and a connection for the last worker that it proved to be."""
        before, last = self._connections.pop(speaker, None), self._speakers.pop(connection, None)
        if before is not None:
            self._speakers.pop(before, None)
        if last is not None:
            self._connections.pop(last, None)
        self._speakers[connection] = speaker
        self._connections[speaker] = connection

    def _sent(self, tenant: str, said: list[Addressed]) -> list[Outgoing]:
        return [
            (self._connections[tenant, worker], answer)
            for worker, answer in said
            if (tenant, worker) in self._connections
        ]

    def _nonce(self, connection: bytes) -> str:
        return hmac.new(self._secret, connection, hashlib.sha256).hexdigest()

    def _refusal(self, connection: bytes, text: str) -> list[Outgoing]:
        self.refused += 1
        return [(connection, Denied(text=text))]
