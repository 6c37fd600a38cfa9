"""Builds the local cluster's binaries from Go modules, once, into the user's cache folder.

Each component has a folder of its own there, named by its version; it is built in a temporary folder and renamed when
complete, so that an interrupted build leaves nothing half done and a fresh clone finds everything. From nothing it
takes about ten minutes on two cores.

Two things differ from a plain ``go build``:

* Kubernetes gets its version by linker flags: Kueue refuses an apiserver whose version it cannot read.
* Kueue reads its metrics certificate from ``/etc/kueue/metrics/certs``, fixed in its ``main.go``. A folder in ``/etc``
  takes root, so that one path is made relative (to the cluster's folder). Nothing else of Kueue is touched.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import platformdirs

from localcluster.errors import LocalClusterError
from localcluster.toolchain import Go, find_go
from localcluster.versions import COMPONENTS, FRAMEWORKS, Component, Framework, component, framework

RECIPE = 1
"""Raised when the same versions are to be built in another way, so that caches are renewed."""

METRICS_CERTIFICATES = "kueue-metrics"
"""Where our Kueue looks for its metrics certificate, relative to its working directory."""

Progress = Callable[[str], None]


def default_cache() -> Path:
    """The user's cache folder of the local cluster (XDG: honours XDG_CACHE_HOME)."""
    return platformdirs.user_cache_path("punctual") / "localcluster"


def folder(of: Component, cache: Path | None = None) -> Path:
    """Where a component is, once built: its binaries, and beside them what it ships for a cluster."""
    return (cache or default_cache()) / f"{of.name}-{of.version}-{RECIPE}"


def binary(name: str, cache: Path | None = None) -> Path:
    """Path of a binary of the cluster, built or not."""
    return folder(next(c for c in COMPONENTS if name in c.commands), cache) / name


def kueue_manifests(cache: Path | None = None) -> Path:
    """Kueue's own ``config/components``: folders ``crd``, ``rbac``, ``webhook``."""
    return folder(component("kueue"), cache) / "manifests"


def kwok_stages(cache: Path | None = None) -> Path:
    """kwok's own Stages for nodes."""
    return folder(component("kwok"), cache) / "stages"


def frameworks(cache: Path | None = None) -> list[str]:
    """Names of the frameworks whose CRDs are here, and those of what they need."""
    here = [each for each in FRAMEWORKS if _crds(each, cache).exists()]
    names = {each.name for each in here}
    return [each.name for each in here if not each.needs or each.needs in names]


def framework_crds(names: Iterable[str], cache: Path | None = None) -> list[Path]:
    """Folders with the CRDs of these frameworks and of what they need."""
    wanted = {name: None for each in map(framework, names) for name in (each.needs, each.name) if name}
    return [_crds(framework(name), cache) for name in wanted]


def _crds(of: Framework, cache: Path | None = None) -> Path:
    kueue = component("kueue")
    return (cache or default_cache()) / f"crds-of-kueue-{kueue.version}-{RECIPE}" / of.name.replace("/", "_")


def missing(cache: Path | None = None) -> list[Component]:
    """Components that are not built yet."""
    return [c for c in COMPONENTS if not folder(c, cache).exists()]


def build(progress: Progress, cache: Path | None = None) -> None:
    """Build what is missing. A second build at the same time waits for the first and finds its work done.

    Parameters
    ----------
    progress
        Called with a line of text when something begins or ends, and now and then in between.
    cache
        Where to; the user's cache folder by default.

    Raises
    ------
    LocalClusterError
        No Go, no network, not enough room: with the last words of the tool that failed.
    """
    cache = cache or default_cache()
    if _complete(cache):
        return
    cache.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(cache / "build.lock", progress):
        if _complete(cache):
            return
        wanted = missing(cache)
        go = find_go(cache, progress)
        started = time.monotonic()
        for number, each in enumerate(wanted, start=1):
            _build_one(each, go, cache, lambda text, n=number: progress(f"[{n}/{len(wanted)}] {text}"))  # type: ignore[misc]
        _fetch_crds(go, cache, progress)
        if go.ours:
            # 7 GB that nobody else uses; a machine's own Go keeps its caches for other projects.
            _run([go.command, "clean", "-cache", "-modcache"], go, cache)
        progress(f"built in {_elapsed(started)} into {cache}")


def _complete(cache: Path) -> bool:
    return not missing(cache) and all(_crds(each, cache).exists() for each in FRAMEWORKS)


@contextmanager
def _one_at_a_time(lock: Path, progress: Progress) -> Iterator[None]:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another build is at work; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_one(what: Component, go: Go, cache: Path, progress: Progress) -> None:
    label = f"{what.name} {what.version}"
    progress(label)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=cache, prefix=f"{what.name}-") as temporary:
        module, result = Path(temporary) / "module", Path(temporary) / "result"
        module.mkdir()
        result.mkdir()
        _run([go.command, "mod", "init", f"localcluster/{what.name}"], go, module)

        def tell(said: str) -> None:
            progress(f"{label}: {said}")

        source = _download(what, go, module)
        _PREPARE.get(what.name, _require)(what, go, module, source, tell)
        # -v names every package as it is compiled: what the progress counts. It does not change what is built.
        command: list[str | Path] = [go.command, "build", "-v", "-ldflags", _linker_flags(what)]
        # One name to a file, several to a folder: that lets Go link them side by side.
        output = result / next(iter(what.commands)) if len(what.commands) == 1 else f"{result}/"
        command += ["-o", output, *_packages(what)]
        _run_with_progress(command, go, module, tell)
        _copy_manifests(what, source, result)
        result.rename(folder(what, cache))
    progress(f"{label}: done in {_elapsed(started)}")


def _download(what: Component, go: Go, module: Path) -> Path:
    """Fetch the module into Go's module cache; its folder there."""
    return _download_version(what.module, what.version, go, module)


def _download_version(name: str, version: str, go: Go, module: Path) -> Path:
    said = _run([go.command, "mod", "download", "-json", f"{name}@{version}"], go, module)
    return Path(json.loads(said)["Dir"])


def _fetch_crds(go: Go, cache: Path, progress: Progress) -> None:
    """CRDs of other job kinds, in the versions of Kueue's go.mod. Without them clusters have Jobs only: no error."""
    kueue = component("kueue")
    with tempfile.TemporaryDirectory(dir=cache, prefix="crds-") as temporary:
        module = Path(temporary) / "module"
        module.mkdir()
        _run([go.command, "mod", "init", "localcluster/crds"], go, module)
        required = (_download(kueue, go, module) / "go.mod").read_text()
        versions = dict(re.findall(r"(?m)^\s*(?:require )?(\S+\.\S+/\S+) (v\S+)", required))
        for number, each in enumerate(e for e in FRAMEWORKS if not _crds(e, cache).exists()):
            result = Path(temporary) / str(number)
            result.mkdir()
            try:
                source = _download_version(each.module, versions[each.module], go, module)
                for file in each.crds:
                    shutil.copyfile(source / file, result / Path(file).name)
            except (KeyError, OSError, LocalClusterError) as error:
                progress(f"no {each.name} in local clusters: its CRDs are not to be had ({error})")
                continue
            _crds(each, cache).parent.mkdir(exist_ok=True)
            result.rename(_crds(each, cache))
            progress(f"{each.name}: CRDs of {each.module} {versions[each.module]}")


def _packages(what: Component) -> list[str]:
    if what.name == "kueue":
        return ["."]
    return [f"{what.module}/{package}".rstrip("/") for package in what.commands.values()]


def _require(what: Component, go: Go, module: Path, source: Path, progress: Progress) -> None:
    _run_with_progress([go.command, "get", f"{what.module}@{what.version}"], go, module, progress)


def _require_kubernetes(what: Component, go: Go, module: Path, source: Path, progress: Progress) -> None:
    """Kubernetes asks for its own staging modules at v0.0.0 and replaces them by folders; we take the released ones."""
    staging = re.findall(r"(?m)^\s*(?:require )?(k8s\.io/\S+) v0\.0\.0(?:\s|$)", (source / "go.mod").read_text())
    released = what.version.replace("v1.", "v0.", 1)
    replace = [f"-replace={name}={name}@{released}" for name in sorted(set(staging))]
    _run([go.command, "mod", "edit", f"-require={what.module}@{what.version}", *replace], go, module)


def _require_kueue(what: Component, go: Go, module: Path, source: Path, progress: Progress) -> None:
    """Kueue's own ``main.go``, with the one path in it that only root could provide made relative."""
    main = (source / "cmd" / "kueue" / "main.go").read_text()
    fixed = '"/etc/kueue/metrics/certs"'
    if main.count(fixed) != 1:
        raise LocalClusterError(
            f"Kueue {what.version}: cmd/kueue/main.go names {fixed} {main.count(fixed)} times, not once: "
            "localcluster/build.py must learn where this version reads its metrics certificate"
        )
    (module / "main.go").write_text(main.replace(fixed, f'"{METRICS_CERTIFICATES}"'))
    _require(what, go, module, source, progress)


_PREPARE = {"kubernetes": _require_kubernetes, "kueue": _require_kueue}


def _linker_flags(what: Component) -> str:
    """No symbol tables; and for Kubernetes the version, without which it calls itself v0.0.0-master."""
    flags = ["-s", "-w"]
    if what.name == "kubernetes":
        major, minor, _ = what.version.removeprefix("v").split(".")
        values = {
            "gitVersion": what.version,
            "gitMajor": major,
            "gitMinor": minor,
            "gitCommit": "0" * 40,
            "gitTreeState": "clean",
            "buildDate": "2026-01-01T00:00:00Z",
        }
        flags += [f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items()]
    return " ".join(flags)


def _copy_manifests(what: Component, source: Path, result: Path) -> None:
    if what.name == "kueue":
        for part in ("crd", "rbac", "webhook"):
            _copy(source / "config" / "components" / part, result / "manifests" / part)
    if what.name == "kwok":
        _copy(source / "kustomize" / "stage" / "node", result / "stages")


def _copy(source: Path, target: Path) -> None:
    # Go's module cache is read-only; copying the contents alone keeps ours removable.
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _run(command: list[str | Path], go: Go, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, env=go.environment, capture_output=True, text=True)
    if done.returncode:
        raise _failed(command, done.stderr or done.stdout)
    return done.stdout


def _run_with_progress(command: list[str | Path], go: Go, cwd: Path, progress: Progress, every: float = 15) -> None:
    """Run Go and tell now and then how many modules it has fetched and packages it has compiled."""
    lines: list[str] = []
    started = told = time.monotonic()
    with subprocess.Popen(
        command, cwd=cwd, env=go.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        # Linking is silent for long: a thread reads, so that the time is told all the same.
        reader = threading.Thread(target=_read_lines, args=(process.stderr, lines))
        reader.start()
        while process.poll() is None:
            time.sleep(0.2)
            if time.monotonic() - told >= every:
                told = time.monotonic()
                fetched = sum(line.startswith("go: downloading") for line in lines)
                compiled = sum(not line.startswith("go: ") for line in lines)
                progress(f"{fetched} modules fetched, {compiled} packages compiled, {_elapsed(started)}")
        reader.join()
    if process.returncode:
        raise _failed(command, "".join(lines))


def _read_lines(file: IO[str], lines: list[str]) -> None:
    for line in file:
        lines.append(line)  # noqa: PERF402 - one at a time, because another thread counts them


def _failed(command: list[str | Path], said: str) -> LocalClusterError:
    words = " ".join(os.fspath(word) for word in command[:3])
    tail = "\n".join(said.strip().splitlines()[-8:])
    hint = ""
    if re.search(r"dial tcp|no such host|i/o timeout|connection refused|Forbidden", said):
        hint = "\nThe Go module proxy cannot be reached or refuses (see `go env GOPROXY`)."
    if "no space left" in said:
        hint = "\nThe disk is full: the build needs about 7 GB for Go's caches."
    return LocalClusterError(f"`{words} …` failed:\n{tail}{hint}")


def _elapsed(since: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - since), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
