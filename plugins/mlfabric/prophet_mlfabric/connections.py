"""Connections of all jobs: the worker that each speaks for, and the end of those that nobody knows.

Rule of this file: bytes in, addressed answers out, the time passed in; no socket. What a request means to its job is
coordination.py's.

Nothing is kept of a connection until it has proved that it has its tenant's token: the nonce that it has to answer is
made from its name and a secret of this start, so it need not be remembered, and a proof is worth nothing on any other
connection or after a new start.

Whatever a job's workers say is that job's: where its coordinator fails over it, it alone begins anew, and its workers
come again.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from prophet_mlfabric.coordination import Addressed, Coordination
from prophet_mlfabric.messages import Answer, Challenge, Denied, Hello, decode_request, proves
from prophet_scheduler.core.errors import UserError

Outgoing: TypeAlias = tuple[bytes, Answer | None]
"""Connection and message to it; None closes the connection."""

logger = logging.getLogger("prophet_scheduler")


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
        """Time at which `turn` has something to do, if nothing is received until then."""
        return min((tenant.coordination.next_s for tenant in self._tenants.values()), default=math.inf)

    def receive(self, connection: bytes, data: bytes, now_s: float) -> list[Outgoing]:
        """Take one message that came in on `connection`."""
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
        return self._asked(name, lambda job: job.receive(worker, request, now_s))

    def turn(self, now_s: float) -> list[Outgoing]:
        """Do what is due in all jobs."""
        return [sent for name in self._tenants for sent in self._asked(name, lambda job: job.turn(now_s))]

    def knows(self, connection: bytes) -> bool:
        """True if a worker speaks on it."""
        return connection in self._speakers

    def closed(self, connection: bytes) -> None:
        """Nobody speaks on it any more; its worker may come on another one."""
        speaker = self._speakers.pop(connection, None)
        if speaker is not None:
            del self._connections[speaker]

    def notices(self) -> list[str]:
        """Return new lines for a person about a job, each once."""
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
        try:
            said = tenant.coordination.join(hello, now_s)
        except Exception as error:
            return self._anew(hello.tenant, error)
        if any(isinstance(answer, Denied) for _, answer in said):
            return [(connection, answer) for _, answer in said]
        return self._bind(connection, (hello.tenant, hello.worker)) + self._sent(hello.tenant, said)

    def _bind(self, connection: bytes, speaker: tuple[str, int]) -> list[Outgoing]:
        """A worker speaks on its newest connection, and a connection for the last worker that it proved to be."""
        before = self._connections.get(speaker, connection)
        self.closed(before)
        self.closed(connection)
        self._speakers[connection] = speaker
        self._connections[speaker] = connection
        return [] if before == connection else [(before, None)]

    def _asked(self, name: str, act: Callable[[Coordination], list[Addressed]]) -> list[Outgoing]:
        try:
            return self._sent(name, act(self._tenants[name].coordination))
        except Exception as error:
            return self._anew(name, error)

    def _anew(self, name: str, error: Exception) -> list[Outgoing]:
        """A tenant's coordinator has failed: it begins anew, and so do its workers' connections."""
        logger.warning("Prophet: the job %s begins anew: %s: %s", name, type(error).__name__, str(error)[:200])
        self._tenants[name].coordination.reset()
        spoken = [connection for connection, (tenant, _) in self._speakers.items() if tenant == name]
        for connection in spoken:
            self.closed(connection)
        return [(connection, None) for connection in spoken]

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
