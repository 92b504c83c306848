"""An ssh-agent with one hardware key in it, whose chip is this process: PROTOCOL.agent and PROTOCOL.u2f of OpenSSH."""

from __future__ import annotations

import base64
import hashlib
import socket
import struct
import threading
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

KIND = b"sk-ssh-ed25519@openssh.com"
APPLICATION = b"ssh:"
IDENTITIES, ANSWER, SIGN, SIGNED, FAILURE = 11, 12, 13, 14, 5
TOUCHED = 1


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


class HardwareKey:
    """A key that only its agent can use. Close it at the end."""

    def __init__(self, path: Path) -> None:
        """Answer at a socket."""
        self._key = Ed25519PrivateKey.generate()
        raw = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self._blob = _string(KIND) + _string(raw) + _string(APPLICATION)
        self._uses = 0
        self.public = f"{KIND.decode()} {base64.b64encode(self._blob).decode()} chip"
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        threading.Thread(target=self._serve, name="hardware key", daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as questions:
            while head := questions.read(4):
                question = questions.read(struct.unpack(">I", head)[0])
                peer.sendall(_string(self._reply(question)))

    def _reply(self, question: bytes) -> bytes:
        if question[0] == IDENTITIES:
            return bytes([ANSWER]) + struct.pack(">I", 1) + _string(self._blob) + _string(b"chip")
        if question[0] != SIGN or not question[1:].startswith(_string(self._blob)):
            return bytes([FAILURE])
        rest = question[1 + len(_string(self._blob)) :]
        data = rest[4 : 4 + struct.unpack(">I", rest[:4])[0]]
        self._uses += 1
        proof = bytes([TOUCHED]) + struct.pack(">I", self._uses)
        shown = hashlib.sha256(APPLICATION).digest() + proof + hashlib.sha256(data).digest()
        return bytes([SIGNED]) + _string(_string(KIND) + _string(self._key.sign(shown)) + proof)
