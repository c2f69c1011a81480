"""The hub of models: is it there, and what of it is here already?"""

from __future__ import annotations

import socket
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies

from discode.backends.local import memory
from discode.errors import InputError, require

PATIENCE = 4.0
"""Seconds to wait for a connection; the hub's library would try for half a minute, or several."""


def cached_folder(name: str, revision: str | None) -> Path | None:
    """Return the folder of a model that was downloaded before, or None."""
    hub = require("huggingface_hub", "hf")
    try:
        found = hub.try_to_load_from_cache(name, "config.json", revision=revision)
    except ValueError:  # its words for a name that cannot be one
        raise InputError(
            f"{name!r} is no model's folder here, and no hub name (ORG/NAME) either"
        ) from None
    return Path(found).parent if isinstance(found, str) else None


def offline(name: str, revision: str | None) -> bool:
    """Return whether only the local cache can be used; raise where it lacks the model, too."""
    constants = require("huggingface_hub.constants", "hf")
    here, asked = cached_folder(name, revision), constants.is_offline_mode()
    if not asked and reachable(constants.ENDPOINT):
        return False
    if here is None:
        why = "HF_HUB_OFFLINE is set" if asked else f"{constants.ENDPOINT} cannot be reached"
        raise InputError(
            f"cannot load {name}: {why}, and {name} is not in the local cache "
            f"({constants.HF_HUB_CACHE}); download it where there is a network, or give a folder"
        )
    return True


def weight_bytes(name: str, revision: str | None, kind: str, *, offline: bool) -> float:
    """Return what a model's weights take as ``kind``, before they are downloaded; 0 if unknown."""
    if offline:
        folder = cached_folder(name, revision)
        files = memory.weight_files(folder) if folder is not None else []
        return memory.weight_bytes([path for path in files if path.is_file()], kind)
    hub = require("huggingface_hub", "hf")
    try:
        counts = hub.get_safetensors_metadata(name, revision=revision).parameter_count
    # A courtesy: whatever the hub does not like is said better by what comes next.
    except Exception:
        return 0.0
    size = memory.BYTES[kind]
    return float(sum(n * (size if t in memory.FLOATS else 1) for t, n in counts.items()))


def reachable(address: str) -> bool:
    """Return whether anybody answers at a web address; behind a proxy, the proxy is trusted."""
    parts = urlsplit(address)
    if {parts.scheme, "all"} & getproxies().keys():
        return True
    port = parts.port or (80 if parts.scheme == "http" else 443)
    answered: list[bool] = []

    def knock() -> None:
        try:
            socket.create_connection((parts.hostname or "", port), PATIENCE).close()
            answered.append(True)
        except OSError:
            pass

    thread = Thread(target=knock, daemon=True)  # a name server that is silent minds no timeout
    thread.start()
    thread.join(PATIENCE)
    return bool(answered)
