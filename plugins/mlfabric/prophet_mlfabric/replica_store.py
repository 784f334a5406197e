"""A worker's way to its job's replica: what it has, a copy to keep, the model back.

Rule of this file: HTTP requests to replica_server.py, and the proofs that both add. When a copy is due is lag.py's.

Whoever asks proves that it has the job's token (HMAC-SHA256, RFC 2104) over what it asks and a number of its own, and
the answer has a proof over that number: a copy is kept by the replica that was meant, or nobody. The token never
travels. A copy that somebody sends once more is one that is there, or older, and changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import io
import json
import secrets
from http import HTTPStatus

from prophet_scheduler.core.errors import UserError

TIMEOUT_S = 10.0
"""Longest seconds for a replica to connect, to take the next bytes, or to answer when it has all."""
PIECE_BYTES = 1 << 16
MOST_REFUSAL_BYTES = 200
"""Most bytes that are read of an answer without a proof."""
UPDATES, DIGEST, NONCE, PROOF, TENANT = (
    "X-Prophet-Updates",
    "X-Prophet-Digest",
    "X-Prophet-Nonce",
    "X-Prophet-Proof",
    "X-Prophet-Tenant",
)
STATE, MODEL = "/state", "/model"


def digest_of(data: bytes) -> str:
    """Return the digest of a body: BLAKE2b (RFC 7693)."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def prove(token: str, *said: str) -> str:
    """The proof of somebody with the token who says this."""
    return hmac.new(token.encode(), "\n".join(said).encode(), hashlib.sha256).hexdigest()


class ReplicaStore:
    """The replica of `tenant` at an address. Any thread may use it; each call is a connection of its own.

    Raises OSError where it cannot be reached or does not answer for TIMEOUT_S, and UserError where it refuses, or where
    what answers has not the job's token.
    """

    def __init__(self, host: str, port: int, tenant: str, token: str, timeout_s: float = TIMEOUT_S) -> None:
        self.address = f"{host}:{port}"
        self._host, self._port = host, port
        self._tenant, self._token = tenant, token
        self._timeout_s = timeout_s

    def updates(self) -> int | None:
        """Return the number of updates in the model that it has; None where it has none."""
        found: int | None = json.loads(self._ask("GET", STATE))["updates"]
        return found

    def keep(self, data: bytes, updates: int) -> None:
        """Returns when it has this model, with so many updates in it, on its disk."""
        self._ask("PUT", MODEL, data, str(updates))

    def model(self) -> bytes:
        """The model that it has."""
        return self._ask("GET", MODEL)

    def _ask(self, method: str, path: str, data: bytes = b"", updates: str = "") -> bytes:
        nonce, digest = secrets.token_hex(16), digest_of(data)
        headers = {
            "Content-Length": str(len(data)),
            TENANT: self._tenant,
            UPDATES: updates,
            DIGEST: digest,
            NONCE: nonce,
            PROOF: prove(self._token, method, path, self._tenant, updates, str(len(data)), digest, nonce),
        }
        # A timeout is of one send, so it is pieces that are sent.
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s, blocksize=PIECE_BYTES)
        try:
            connection.request(method, path, io.BytesIO(data), headers)
            answer = connection.getresponse()
            status, digest = str(answer.status), answer.getheader(DIGEST, "")
            proof = prove(self._token, nonce, status, digest)
            proved = hmac.compare_digest(proof.encode(), answer.getheader(PROOF, "").encode())
            # Whoever has no proof may say why, and no more.
            body = answer.read() if proved else answer.read(MOST_REFUSAL_BYTES)
        except http.client.HTTPException as error:
            if isinstance(error, OSError):
                raise  # it has gone away
            raise UserError(f"replica {self.address}: it is none ({type(error).__name__})") from None
        finally:
            connection.close()
        if answer.status == HTTPStatus.FORBIDDEN:
            raise UserError(f"replica {self.address}: {body.decode(errors='replace')}")
        if not (proved and hmac.compare_digest(digest_of(body).encode(), digest.encode())):
            raise UserError(f"replica {self.address}: what answers there has not the token of {self._tenant}")
        if answer.status != HTTPStatus.OK:
            raise UserError(f"replica {self.address}: {body.decode(errors='replace')[:200]}")
        return body
