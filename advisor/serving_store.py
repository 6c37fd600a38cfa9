"""The folder of a run: every trial and every request of it is kept, and a later run goes on from there."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from advisor.serving_fingerprint import Fingerprint, changes
from advisor.serving_trial import Trial, trial_of

_RUN, _TRIALS, _SAMPLES = "run.json", "trials.jsonl", "samples"


class BadStore(RuntimeError):
    """A folder that cannot be used."""


class Changed(RuntimeError):
    """Configuration or hardware is not what the run began with."""

    def __init__(self, what: list[str]) -> None:
        super().__init__("; ".join(what))
        self.what = what


class Store:
    """A folder that one process at a time writes to.

    Raises
    ------
    BadStore
        If the folder cannot be written, holds something else, or another process uses it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._made = folder, not folder.exists()
        try:
            (folder / _SAMPLES).mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = (folder / ".lock").open("w")
        except OSError as error:
            raise BadStore(f"{folder}: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadStore(f"{folder}: another process measures into it") from None
        self.fingerprint, self.void = self._read_run()
        self.trials = self._read_trials()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made and not self.trials:
            shutil.rmtree(self.folder, ignore_errors=True)  # nothing was measured: nothing stays behind
        self._lock.close()

    def begin(self, fingerprint: Fingerprint) -> None:
        """Begin a run, or go on with the one that is there.

        Raises
        ------
        Changed
            If the one that is there was measured on or with something else. It stays as it is.
        """
        if self.fingerprint is None or not self.trials:
            self.void = []
            self.fingerprint = fingerprint
            self._write_run()
        elif what := changes(self.fingerprint, fingerprint):
            raise Changed(what)

    def invalidate(self, what: list[str]) -> None:
        """Mark the run as void: something changed while it was going on."""
        self.void = what
        self._write_run()

    def add(self, trial: Trial, samples: Iterable[Mapping[str, Any]]) -> None:
        """Keep a trial and its requests.

        Raises
        ------
        BadStore
            If they cannot be written.
        """
        try:
            with gzip.open(self.folder / _SAMPLES / f"{trial.number:04}.jsonl.gz", "wt", encoding="utf-8") as file:
                for sample in samples:
                    file.write(json.dumps(sample, ensure_ascii=False) + "\n")
            with (self.folder / _TRIALS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(trial.as_data(), ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise BadStore(f"{self.folder}: trial {trial.number} cannot be kept: {error.strerror}") from None
        self.trials.append(trial)

    def _write_run(self) -> None:
        data = {"version": 1, "fingerprint": self.fingerprint, "void": self.void}
        temporary = self.folder / (_RUN + ".new")
        try:
            temporary.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            temporary.replace(self.folder / _RUN)
        except OSError as error:
            raise BadStore(f"{self.folder}: cannot be written: {error.strerror}") from None

    def _read_run(self) -> tuple[Fingerprint | None, list[str]]:
        path = self.folder / _RUN
        if not path.exists():
            return None, []
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return dict(data["fingerprint"]), list(data["void"])
        except (OSError, ValueError, LookupError, TypeError):
            raise BadStore(f"{path}: is no run of `punctual advise serving`") from None

    def _read_trials(self) -> list[Trial]:
        path = self.folder / _TRIALS
        if not path.exists():
            return []
        *lines, rest = path.read_bytes().split(b"\n")
        try:
            trials = [trial_of(json.loads(line)) for line in lines]
        except (ValueError, LookupError, TypeError) as error:
            raise BadStore(f"{path}: line {len(lines)} or before is no trial: {error}") from None
        if rest:  # it was cut off while it was written
            with path.open("r+b") as file:
                file.truncate(path.stat().st_size - len(rest))
        return trials
