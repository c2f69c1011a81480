"""The model hub: reachability, the local cache, and sizes of models."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from discode.backends._local import memory
from discode.errors import InputError, require

CONNECT_SECONDS = 4.0
"""How long to wait for a connection; the hub's library would try for at least half a minute."""


def cached_folder(name: str, revision: str | None) -> Path | None:
    """Find the folder of a model in the local cache; None if it is not there."""
    hub = require("huggingface_hub", "hf")
    try:
        config = hub.try_to_load_from_cache(name, "config.json", revision=revision)
    except ValueError:  # an impossible name
        raise InputError(f"{name!r} is neither a model folder nor a hub name (ORG/NAME)") from None
    return Path(config).parent if isinstance(config, str) else None


def must_use_cache(name: str, revision: str | None) -> bool:
    """Whether the hub cannot be used; raises if the cache does not have the model either."""
    constants = require("huggingface_hub.constants", "hf")
    folder, offline = cached_folder(name, revision), constants.is_offline_mode()
    if not offline and reachable(constants.ENDPOINT):
        return False
    if folder is None:
        why = "HF_HUB_OFFLINE is set" if offline else f"{constants.ENDPOINT} cannot be reached"
        raise InputError(
            f"cannot load {name}: {why}, and {name} is not in the local cache "
            f"({constants.HF_HUB_CACHE}); download it with a network connection or give a folder"
        )
    return True


def local_folder(name: str, files: Sequence[str], common: Mapping[str, Any]) -> Path:
    """Find the folder with ``files`` (patterns) of a model: its own, or one in the hub's cache."""
    if Path(name).is_dir():
        return Path(name)
    where = {key: common.get(key) for key in ("revision", "local_files_only")}
    hub = require("huggingface_hub", "hf")
    return Path(hub.snapshot_download(name, allow_patterns=list(files), **where))


def model_bytes(name: str, revision: str | None, kind: str, *, offline: bool) -> float:
    """Compute the size of a model's weights as ``kind`` without a download; 0 if not known."""
    folder = Path(name) if Path(name).is_dir() else cached_folder(name, revision)
    if offline or Path(name).is_dir():
        files = memory.weight_files(folder) if folder is not None else []
        return memory.weight_bytes([path for path in files if path.is_file()], kind)
    hub = require("huggingface_hub", "hf")
    try:
        counts = hub.get_safetensors_metadata(name, revision=revision).parameter_count
    # Only for an early warning: loading the model will report any problem.
    except Exception:
        return 0.0
    size = memory.BYTES_PER_WEIGHT[kind]
    return float(sum(n * (size if t in memory.FLOAT_TYPES else 1) for t, n in counts.items()))


def reachable(address: str) -> bool:
    """Whether a server accepts connections at a web address; a proxy is assumed to work."""
    parts = urlsplit(address)
    if {parts.scheme, "all"} & getproxies().keys():
        return True
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((parts.hostname or "", port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
