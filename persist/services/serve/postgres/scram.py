"""SCRAM-SHA-256: a client proves that it has a token without sending it.

The user's name is not looked at: a token is what grants rights. The server derives the keys of its tokens when it
begins.

Source: RFC 5802 and RFC 7677.
"""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass

from persist.services.serve.postgres.wire import Failure, ProtocolViolation

MECHANISM = "SCRAM-SHA-256"
_ITERATIONS = 4096


@dataclass(frozen=True)
class _Keys:
    """SCRAM's StoredKey and ServerKey of a token."""

    stored: bytes
    server: bytes


class Scram:
    """Checks clients' proofs that they have a token of the server. `tokens`: by token, whether it may write."""

    def __init__(self, tokens: Mapping[str, bool]) -> None:
        self._salt = os.urandom(16)
        self._keys = [(_derive_keys(token, self._salt), may_write) for token, may_write in tokens.items()]

    def begin(self, first: str) -> "Exchange":
        """Return the exchange that a client begins by its first message."""
        binding, _, bare = first.partition(",,")
        if binding.startswith("p="):
            raise Failure("28000", "channel binding is not served: connect with channel_binding=prefer")
        fields = _parse_fields(bare)
        if binding not in ("n", "y") or not fields.get("r"):
            raise ProtocolViolation("the first message of SCRAM is malformed")
        return Exchange(self._keys, self._salt, f"{binding},,", bare, fields["r"])


class Exchange:
    """The login of one client; `challenge` is the first message to it."""

    def __init__(self, keys: list[tuple[_Keys, bool]], salt: bytes, binding: str, bare: str, nonce: str) -> None:
        self._keys = keys
        self._binding = base64.b64encode(binding.encode()).decode()
        self._bare = bare
        self._nonce = nonce + base64.b64encode(os.urandom(18)).decode()
        self.challenge = f"r={self._nonce},s={base64.b64encode(salt).decode()},i={_ITERATIONS}"

    def finish(self, final: str) -> tuple[str, bool]:
        """Return the server's proof for the client, and whether its token allows writing."""
        without_proof, _, proof_text = final.rpartition(",p=")
        fields = _parse_fields(without_proof)
        try:
            proof = base64.b64decode(proof_text, validate=True)
        except binascii.Error as error:
            raise ProtocolViolation("the last message of SCRAM is malformed") from error
        if fields.get("c") != self._binding or fields.get("r") != self._nonce or len(proof) != 32:
            raise ProtocolViolation("the last message of SCRAM is malformed")
        signed = f"{self._bare},{self.challenge},{without_proof}".encode()
        accepted: list[tuple[_Keys, bool]] = []
        for keys, may_write in self._keys:
            signature = hmac.digest(keys.stored, signed, "sha256")
            key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
            if hmac.compare_digest(hashlib.sha256(key).digest(), keys.stored):
                accepted.append((keys, may_write))
        if not accepted:
            raise Failure("28P01", "the password is not a token of this server")
        keys, may_write = accepted[0]
        return f"v={base64.b64encode(hmac.digest(keys.server, signed, 'sha256')).decode()}", may_write


def _derive_keys(token: str, salt: bytes) -> _Keys:
    """Return SCRAM's keys of a token and a salt."""
    salted = hashlib.pbkdf2_hmac("sha256", token.encode(), salt, _ITERATIONS)
    client = hmac.digest(salted, b"Client Key", "sha256")
    return _Keys(hashlib.sha256(client).digest(), hmac.digest(salted, b"Server Key", "sha256"))


def _parse_fields(text: str) -> dict[str, str]:
    """Return the fields `letter=value` of a message, by letter."""
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}
