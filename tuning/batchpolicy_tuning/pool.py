"""Work that needs an engine, spread over processes."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from threading import Event, Thread, current_thread, main_thread
from types import TracebackType
from typing import Protocol, Self, TypeVar

from typing_extensions import override

from batchpolicy.engine import Engine
from batchpolicy.errors import BatchPolicyError

_ENDS = (signal.SIGINT, signal.SIGTERM)
_LOGGER = logging.getLogger("batchpolicy.runner.guard")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class RunFailed(BatchPolicyError):
    """A run ended with an error that is not the user's."""


class Task(Protocol[T_co]):
    """Something to do with an engine; it and its result can be pickled."""

    def __call__(self, engine: Engine, /) -> T_co:
        """Do it."""
        ...


class _Flag(Protocol):
    def is_set(self) -> bool: ...
    def set(self) -> None: ...


class _First(logging.Filter):
    """Lets one traceback through: a policy that fails does so in every replication."""

    def __init__(self, told: _Flag) -> None:
        super().__init__()
        self._told = told

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if not record.exc_info:
            return True
        first = not self._told.is_set()
        self._told.set()
        return first


class Workers:
    """Processes that each make their engine once and keep it; to be used with ``with``.

    With one process all is done in this one. When the block is left by an error, by
    Ctrl-C too, the processes are ended at once.

    Raises
    ------
    BatchPolicyError
        As a task raised it.
    RunFailed
        When a process dies.
    """

    def __init__(self, make_engine: Callable[[], Engine], processes: int) -> None:
        self._make_engine = make_engine
        self._processes = processes
        self._engine: Engine | None = None
        self._executor: ProcessPoolExecutor | None = None
        self._first = _First(Event())

    def __enter__(self) -> Self:
        if self._processes == 1:
            _LOGGER.addFilter(self._first)
        else:
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(
                self._processes,
                mp_context=context,
                initializer=_start,
                initargs=(self._make_engine, context.Event()),
            )
            # Engines take seconds to import: all begin before the first result is needed.
            for _ in range(self._processes - 1):
                self._submit(self._executor, _nothing)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._executor is None:
            _LOGGER.removeFilter(self._first)
            return
        if kind is None:
            self._executor.shutdown()
            return
        self._executor.shutdown(wait=False, cancel_futures=True)
        ended = multiprocessing.active_children()
        for process in ended:
            process.kill()
        for process in ended:
            process.join()

    def one(self, task: Task[T]) -> T:
        """The result of a task."""
        return next(self.each([task]))[1]

    def each(self, tasks: Sequence[Task[T]]) -> Generator[tuple[int, T], None, None]:
        """Position and result of each task, as they end."""
        if self._executor is None:
            if self._engine is None:
                self._engine = self._make_engine()
            yield from ((i, task(self._engine)) for i, task in enumerate(tasks))
            return
        pending = {self._submit(self._executor, task): i for i, task in enumerate(tasks)}
        for done in as_completed(pending):
            yield pending[done], _result(done)

    def _submit(self, executor: ProcessPoolExecutor, task: Task[T]) -> Future[T]:
        with not_interrupted():
            return executor.submit(_do, task)


@contextmanager
def interrupted_once() -> Generator[None, None, None]:
    """Ctrl-C or SIGTERM raises ``KeyboardInterrupt``; what comes after it is ignored.

    So that processes and files are cleaned up, however impatiently one is told to end.
    """
    if current_thread() is not main_thread():
        yield
        return
    before = {end: signal.getsignal(end) for end in _ENDS}
    # A shell lets what it runs in the background ignore Ctrl-C.
    heard = [end for end in _ENDS if before[end] not in (signal.SIG_IGN, None)]

    told = False

    def interrupt(*_: object) -> None:
        nonlocal told
        if not told:
            told = True
            raise KeyboardInterrupt

    for end in heard:
        signal.signal(end, interrupt)
    try:
        yield
    finally:
        for end in heard:
            signal.signal(end, before[end])


@contextmanager
def not_interrupted() -> Generator[None, None, None]:
    """Ctrl-C and SIGTERM wait until the processes that are started here have begun."""
    # A process that is half started would be nobody's to end. It inherits the mask:
    # Ctrl-C goes to the one that can say so and clean up. The first of all starts this
    # tracker too, which lets both signals through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _result(done: Future[T]) -> T:
    try:
        return done.result()
    except BrokenProcessPool as fault:
        raise RunFailed(
            "a process of the comparison died; it may have run out of memory. "
            "Try fewer with --jobs, or smaller replications with --requests."
        ) from fault


_make_engine: Callable[[], Engine]
_engine: Engine | None = None


def _start(make_engine: Callable[[], Engine], told: _Flag) -> None:
    global _make_engine
    _LOGGER.addFilter(_First(told))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    Thread(target=end_with_the_parent, daemon=True).start()
    _make_engine = make_engine


def end_with_the_parent() -> None:
    """Wait for the end of the process that started this one, and end then too."""
    # Whoever is killed cannot end its processes.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(task: Task[T]) -> T:
    global _engine
    # Made here and not in _start: an error there would only break the pool.
    if _engine is None:
        _engine = _make_engine()
    return task(_engine)


def _nothing(engine: Engine) -> None:
    pass
