"""Connections of all jobs, and the worker on each.

Rule of this file: bytes in, addressed answers out, the time passed in; no socket. coordination.py handles a job's
requests.

Until a connection proves its token, only its nonce is kept. Jobs share nothing: if one job's coordinator fails, only
that job restarts, and its workers reconnect.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeAlias, TypeVar

from prophet_mlfabric.coordination import Addressed, Coordination
from prophet_mlfabric.messages import Answer, Challenge, Denied, Hello, decode_request, proves
from prophet_scheduler.core.errors import UserError

C = TypeVar("C", bound=Hashable)
"""A connection."""
Outgoing: TypeAlias = tuple[C, Answer | None]
"""Connection, and the message to send on it; None closes it."""

logger = logging.getLogger("prophet_scheduler")


class Connections(Generic[C]):
    """All jobs behind one socket. `refused` counts messages refused before they reached a job."""

    def __init__(self, tokens: Mapping[str, str], jobs: Mapping[str, Coordination]) -> None:
        """Both mappings are keyed by tenant."""
        self.jobs, self.refused, self._tokens = jobs, 0, tokens
        self._nonces: dict[C, str] = {}
        self._speakers: dict[C, tuple[str, int]] = {}
        self._connections: dict[tuple[str, int], C] = {}

    def __len__(self) -> int:
        return len(self._speakers)

    @property
    def next_s(self) -> float:
        """Time at which to call `turn` if nothing is received before."""
        return min((job.next_s for job in self.jobs.values()), default=math.inf)

    def receive(self, connection: C, data: bytes, now_s: float) -> list[Outgoing[C]]:
        """Handle one message from `connection`."""
        try:
            request = decode_request(data)
        except UserError as error:
            return self._refusal(connection, str(error))
        if isinstance(request, Hello):
            return self._hello(connection, request, now_s)
        if connection not in self._speakers:
            return self._challenge(connection)
        name, worker = self._speakers[connection]
        return self._asked(name, lambda job: job.receive(worker, request, now_s))

    def turn(self, now_s: float) -> list[Outgoing[C]]:
        """Run what is due in all jobs."""
        return [sent for name in self.jobs for sent in self._asked(name, lambda job: job.turn(now_s))]

    def knows(self, connection: C) -> bool:
        """Return True if an admitted worker uses the connection."""
        return connection in self._speakers

    def closed(self, connection: C) -> None:
        """Forget a connection; its worker may reconnect."""
        if (speaker := self._drop(connection)) is not None:
            name, worker = speaker
            self.jobs[name].disconnected(worker)

    def _drop(self, connection: C) -> tuple[str, int] | None:
        """Forget a connection. Return whose it was."""
        self._nonces.pop(connection, None)
        speaker = self._speakers.pop(connection, None)
        if speaker is not None:
            del self._connections[speaker]
        return speaker

    def notices(self) -> list[str]:
        """Return new lines for the operator about a job, each once."""
        lines = [f"{name}: {line}" for name, job in self.jobs.items() for line in job.lag.notices]
        for job in self.jobs.values():
            job.lag.notices.clear()
        return lines

    def _hello(self, connection: C, hello: Hello, now_s: float) -> list[Outgoing[C]]:
        name, nonce = hello.tenant, self._nonces.get(connection)
        if name not in self.jobs:
            return self._refusal(connection, f"tenant {name}: there is no such tenant here")
        if not hello.proof:
            return self._challenge(connection)
        if nonce is None or not proves(self._tokens[name], nonce, hello):
            return self._refusal(connection, f"tenant {name}: the token is wrong")
        try:
            answers = self.jobs[name].join(hello, now_s)
        except Exception as error:
            return self._anew(name, error)
        if any(isinstance(answer, Denied) for _, answer in answers):
            return [(connection, answer) for _, answer in answers]
        # A worker keeps only its newest connection, and a connection only the worker that it proved last.
        speaker = name, hello.worker
        before = self._connections.get(speaker, connection)
        self._drop(before)
        if (other := self._drop(connection)) not in (None, speaker):
            self.jobs[name].disconnected(other[1])
        self._speakers[connection], self._connections[speaker], self._nonces[connection] = speaker, connection, nonce
        ended: list[Outgoing[C]] = [(before, None)] if before != connection else []
        return ended + self._sent(name, answers)

    def _asked(self, name: str, act: Callable[[Coordination], list[Addressed]]) -> list[Outgoing[C]]:
        try:
            return self._sent(name, act(self.jobs[name]))
        except Exception as error:
            return self._anew(name, error)

    def _anew(self, name: str, error: Exception) -> list[Outgoing[C]]:
        """Restart a tenant's job and close its connections, since its coordinator has failed."""
        logger.warning("Prophet: the job %s restarts: %s: %s", name, type(error).__name__, str(error)[:200])
        self.jobs[name].reset()
        spoken = [connection for connection, (tenant, _) in self._speakers.items() if tenant == name]
        for connection in spoken:
            self._drop(connection)
        return [(connection, None) for connection in spoken]

    def _sent(self, name: str, answers: list[Addressed]) -> list[Outgoing[C]]:
        at = self._connections
        return [(at[name, worker], answer) for worker, answer in answers if (name, worker) in at]

    def _challenge(self, connection: C) -> list[Outgoing[C]]:
        return [(connection, Challenge(nonce=self._nonces.setdefault(connection, secrets.token_hex(32))))]

    def _refusal(self, connection: C, text: str) -> list[Outgoing[C]]:
        self.refused += 1
        return [(connection, Denied(text=text))]
