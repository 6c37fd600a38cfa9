"""What a run was measured on and with: if any of it changes, earlier and later trials do not belong together."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.serving_target import Target, joined

if TYPE_CHECKING:
    import aiohttp

Fingerprint = dict[str, str]
"""By what it is about, in words."""

_PAUSES = (0.0, 1.0, 5.0)
"""Seconds before each time that a server is asked what it is."""
_PATIENCE = 30
"""Seconds for a question about hardware or configuration."""


class NoFacts(RuntimeError):
    """Who should say what the server is does not say it."""


def digest(value: Any) -> str:
    """A short name for a value: the same one, the same name."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_machine() -> Fingerprint:
    """Hardware and software of this machine, which sends the load (and may be the one that answers)."""
    try:
        own = version("kueue-punctual")
    except PackageNotFoundError:
        own = "from source"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return {
        "punctual": own,
        "python": platform.python_version(),
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": f"{memory} MiB",
        "GPUs here": _gpus(),
    }


def of_facts(command: str | None) -> Fingerprint:
    """What a command of the user says about the server: its deployment, its GPUs.

    Raises
    ------
    NoFacts
        If it fails, or takes too long.
    """
    if command is None:
        return {}
    try:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=_PATIENCE, errors="replace")
    except subprocess.TimeoutExpired:
        raise NoFacts(f"--facts-command was not done after {_PATIENCE} s") from None
    if done.returncode:
        raise NoFacts(f"--facts-command failed with exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return {"facts": done.stdout.strip()}


async def of_server(connections: aiohttp.ClientSession, target: Target, chats: bool) -> Fingerprint:
    """What the server says about itself: its software, its models; nothing of what it does not say.

    Raises
    ------
    NoFacts
        If it does not answer, or is too busy: that is no change.
    """
    if not chats:
        return {}
    told: Fingerprint = {}
    for name, path in (("models", "/v1/models"), ("server version", "/version")):
        found = await _get(connections, target, path)
        if name == "models" and isinstance(found, dict) and isinstance(found.get("data"), list):
            # When a model was made is for some servers the instant of the question.
            models = [model for model in found["data"] if isinstance(model, dict)]
            found = [
                {k: model[k] for k in ("id", "root", "max_model_len", "owned_by") if k in model} for model in models
            ]
        if found is not None:
            told[name] = json.dumps(found, sort_keys=True)[:2000]
    return told


async def _get(connections: aiohttp.ClientSession, target: Target, path: str) -> Any:
    """What the server says at a path; None if it has nothing there, or nothing that can be read."""
    import aiohttp

    patience = aiohttp.ClientTimeout(total=_PATIENCE)
    why = ""
    for pause in _PAUSES:
        await asyncio.sleep(pause)
        try:
            async with connections.get(
                joined(target.url, path), headers=dict(target.headers), allow_redirects=False, timeout=patience
            ) as response:
                if response.status != 429 and response.status < 500:
                    return json.loads(await response.content.read(1 << 20)) if response.status == 200 else None
                why = str(response.status)
        except ValueError:
            return None
        except (aiohttp.ClientError, OSError) as error:
            why = str(error) or type(error).__name__
    raise NoFacts(f"the target cannot be asked for {path}: {why}")


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is different, in words."""
    told = []
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name, "nothing"), now.get(name, "nothing")
        if old != new:
            told.append(f"{name}: was {_short(old)}, is {_short(new)}")
    return told


def _short(text: str) -> str:
    return text if len(text) <= 120 else text[:120] + "…"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _gpus() -> str:
    if shutil.which("nvidia-smi") is None:
        return "none seen"
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return "none seen"
    return "; ".join(done.stdout.split("\n")).strip("; ") if done.returncode == 0 else "none seen"
