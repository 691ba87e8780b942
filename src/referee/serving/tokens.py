"""The secret that a caller must know."""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
from pathlib import Path

from referee.errors import RefereeError

_log = logging.getLogger(__name__)
FORM = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")
"""What may stand after `Bearer`."""


def new_token() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(32)


def check_token(token: str) -> str:
    """The token, unless it could be guessed or could not be sent."""
    if not FORM.fullmatch(token):
        raise RefereeError(
            "the token must be 16 to 512 letters, digits or . _ ~ + / = -: leave it out to get a new one"
        )
    return token


def token_in(path: Path) -> str:
    """The token in a file; where there is none, a new one is written that only its owner can read."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read(path)
    except OSError as error:
        raise RefereeError(
            f"cannot write the token to {path} ({error.strerror}): choose another --token-file"
        ) from error
    token = new_token()
    with os.fdopen(handle, "w") as file:
        file.write(f"{token}\n")
    return token


def same(given: str, token: str) -> bool:
    """Whether they are equal, in a time that does not tell how far they are."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _read(path: Path) -> str:
    try:
        token = path.read_text().strip()
        if path.stat().st_mode & 0o077:
            _log.warning("others can read %s: chmod 600 %s", path, path)
    except (OSError, UnicodeDecodeError) as error:
        raise RefereeError(f"cannot read the token in {path}: {error}") from error
    try:
        return check_token(token)
    except RefereeError as error:
        raise RefereeError(f"{path}: {error}") from error
