"""Run a study's queue with several processes."""

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

from offrec.console import Console
from offrec.data.arrays import verified_files
from offrec.studies.progress import StudyProgress
from offrec.studies.study import Study
from offrec.studies.worker import RunCounts, WorkerOptions, interruption

POLL_SECONDS = 0.5


@dataclass
class _Process:
    number: int
    process: subprocess.Popen[bytes]
    counts_at_start: RunCounts


def run_processes(study: Study, options: WorkerOptions, console: Console) -> RunCounts:
    """Run the queue with `options.jobs` processes until no run is waiting.

    A process that dies is replaced if the study has progressed since it was started.
    """
    devices, started = options.device.split(","), time.monotonic()

    def start(number: int) -> _Process:
        seconds = options.time_limit - (time.monotonic() - started)
        process = _start(study, options, devices[number % len(devices)], number, seconds)
        return _Process(number, process, RunCounts.of(study))

    workers = [start(number) for number in range(options.jobs)]
    previous_handler = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        console.line(f"{options.jobs} processes run concurrently; their output is in {_log(study, '*')}")
        with StudyProgress(study, console) as progress:
            while workers:
                time.sleep(POLL_SECONDS)
                progress.update()
                for worker in [worker for worker in workers if worker.process.poll() is not None]:
                    workers.remove(worker)
                    code, counts = worker.process.returncode, RunCounts.of(study)
                    if code and counts.waiting:
                        console.line(
                            f"Process {worker.number} ended with exit code {code}; see {_log(study, worker.number)}"
                        )
                    if code and counts.waiting and counts != worker.counts_at_start:
                        workers.append(start(worker.number))
    except KeyboardInterrupt as error:
        raise interruption(study) from error
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.wait()
        signal.signal(signal.SIGTERM, previous_handler)
    return RunCounts.of(study)


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _log(study: Study, number: int | str) -> str:
    return str(study.folder / f"process-{number}.log")


def _start(
    study: Study, options: WorkerOptions, device: str, number: int, time_limit: float
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "offrec.studies", str(study.folder), "--device", device]
    command += ["--time-limit", str(time_limit), "--parent", str(os.getpid())]
    command += ["--data", *(dataset.path for dataset in study.datasets)]
    command += ["--concurrent-seeds", str(options.concurrent_seeds)] if options.concurrent_seeds else []
    command += ["--processes-on-device", str(math.ceil(options.jobs / len(options.device.split(","))))]
    environment: dict[str, Any] = dict(os.environ)
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    environment |= verified_files()
    with open(_log(study, number), "ab") as log:
        # A separate session: Ctrl-C reaches the parent only, which then stops each process once.
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
