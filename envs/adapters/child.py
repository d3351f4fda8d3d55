"""A child process that answers calls in the wire form, and every way in which it can fail."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.core import ActionError, LifecycleError, MissingDependency
from envs.registry import UnknownName
from envs.wire import DEFAULT_LIMITS, Limits, WireError, encode_frame, known_records, read_frame

_TAIL = 4000  # bytes of the child's stderr that are kept for messages
_CHUNK = 1 << 16
_POLL = 1.0  # seconds between looks at whether the child still runs


class BackendProcessError(RuntimeError):
    """The backend's process does not work: it died, hangs, or speaks nonsense."""


class BackendDiedError(BackendProcessError):
    """The backend's process ended while it was needed; the message says how."""


class BackendTimeoutError(BackendProcessError, TimeoutError):
    """The backend's process did not answer in time and was killed."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds: until the child is ready, for one call (the first one compiles), to end."""

    start: float = 120.0
    call: float = 120.0
    close: float = 5.0


DEFAULT_TIMEOUTS = Timeouts()


class Child:
    """One child process; not for use from several threads.

    Args:
        command: the program and its arguments; it speaks frames on stdin and stdout.
        cwd, environment: of the child; the environment is added to this process's own.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        if isinstance(command, str) or not command:
            raise ValueError(f"command must be a list of arguments, got {command!r}")
        self.command, self.timeouts, self.limits = list(command), timeouts, limits
        self.records = known_records()
        self.failure = ""
        self._tail = bytearray()
        self._ended = False
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=cwd,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C is ours, and a kill takes its children along
            )
        except OSError as error:
            raise BackendProcessError(f"cannot start {self.command[0]!r}: {error}") from error
        self._finalizer = weakref.finalize(self, _end, self._process, 0.0)
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._stdin, self._stdout, self._stderr = (p.fileno() for p in pipes if p is not None)
        self._to_read, self._to_write = select.poll(), select.poll()
        for fd in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(fd, False)
        self._to_write.register(self._stdin, select.POLLOUT)
        self._to_read.register(self._stdout, select.POLLIN)
        for poll in (self._to_read, self._to_write):
            poll.register(self._stderr, select.POLLIN)

    @property
    def pid(self) -> int:
        return self._process.pid

    def stderr_tail(self) -> str:
        """The end of what the child has written to its stderr."""
        return bytes(self._tail).decode(errors="replace").strip()

    def greeting(self) -> Any:
        """What the child says unasked when it is ready."""
        return self._exchange("start", [], self.timeouts.start)

    def call(self, name: str, *arguments: Any) -> Any:
        """The result of one call.

        Raises:
            BackendDiedError, BackendTimeoutError, BackendProcessError: no usable answer; the
                child is gone then.
            Exception: whatever the child raised, as the same kind where this side has it.
        """
        message = {"call": name, "arguments": list(arguments)}
        return self._exchange(name, list(encode_frame(message, self.limits)), self.timeouts.call)

    def close(self) -> None:
        """End the child: kindly, by closing its stdin, then by force."""
        if self._finalizer.detach():
            _end(self._process, self.timeouts.close)

    # --- one exchange ---------------------------------------------------------------------

    def _exchange(self, name: str, pieces: list[bytes | memoryview], seconds: float) -> Any:
        if self.failure:
            raise BackendDiedError(f"the backend's process has already ended: {self.failure}")
        deadline = time.monotonic() + seconds
        try:
            for piece in pieces:
                self._write(piece, deadline)
            reply = read_frame(lambda size: self._read(size, deadline), self.records, self.limits)
            if not isinstance(reply, dict) or len(reply) != 1 or not {"result", "error"} & {*reply}:
                raise WireError("the answer is neither a result nor an error")
        except TimeoutError:
            message = f"no answer to {name} within {seconds:g} s; the process was killed"
            raise BackendTimeoutError(self._give_up(message)) from None
        except (WireError, ConnectionError) as error:
            self._ended |= isinstance(error, ConnectionError)
            raise self._explain(name, error) from error
        except BaseException:  # an interrupt leaves an answer in the pipe that nobody asked for
            self._give_up(f"interrupted during {name}")
            raise
        if "error" in reply:
            raise remote_exception(reply["error"])
        return reply["result"]

    def _write(self, piece: bytes | memoryview, deadline: float) -> None:
        view = memoryview(piece)
        while view:
            self._wait(self._to_write, self._stdin, deadline)
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(self._stdin, view[:_CHUNK]) :]

    def _read(self, size: int, deadline: float) -> bytes:
        while True:
            ready = self._wait(self._to_read, self._stdout, deadline)
            with contextlib.suppress(BlockingIOError):
                data = os.read(self._stdout, size) if ready else b""
                self._ended = not data
                return data

    def _wait(self, poll: select.poll, fd: int, deadline: float) -> bool:
        """Until the pipe is ready (True) or the child has ended (False); keeps stderr drained."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            ready = {ready for ready, _ in poll.poll(min(left, _POLL) * 1000)}
            if self._stderr in ready and not self._drain():
                self._to_read.unregister(self._stderr)
                self._to_write.unregister(self._stderr)
            if fd in ready:
                return True
            if not ready and self._process.poll() is not None:
                return False

    def _drain(self) -> bool:
        """One read of the child's stderr; False at its end."""
        try:
            data = os.read(self._stderr, _CHUNK)
        except BlockingIOError:
            return True
        self._tail = (self._tail + data)[-_TAIL:]
        return bool(data)

    # --- failures -------------------------------------------------------------------------

    def _explain(self, name: str, error: Exception) -> BackendProcessError:
        """Whether the child ended or talks nonsense; either way it is gone afterwards."""
        status = None
        if self._ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(self.timeouts.close)
        if status is None:
            return BackendProcessError(self._give_up(f"unreadable answer to {name}: {error}"))
        return BackendDiedError(self._give_up(f"it {_how_it_ended(status)} during {name}"))

    def _give_up(self, reason: str) -> str:
        self._finalizer.detach()
        _kill(self._process)
        with contextlib.suppress(OSError):
            while self._drain() and select.select([self._stderr], [], [], 0)[0]:
                pass
        _end(self._process, 0.0)
        self.failure = reason
        tail = self.stderr_tail()
        shown = f"; the end of its stderr:\n{tail}" if tail else "; it wrote nothing to stderr"
        command = " ".join(self.command)
        return f"the backend's process failed: {reason} (pid {self.pid}, {command}){shown}"


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def _kill(process: subprocess.Popen) -> None:
    """The child and, while it is not reaped, everything in its session's group."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen, seconds: float) -> None:
    """Close the child's stdin, wait, kill it when it stays, and reap it."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if seconds:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    _kill(process)
    process.wait()


_EXCEPTIONS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        *(ActionError, LifecycleError, MissingDependency, UnknownName, WireError),
        *(ValueError, TypeError, KeyError, IndexError, LookupError, AttributeError, NameError),
        *(RuntimeError, NotImplementedError, AssertionError, MemoryError, ArithmeticError),
        *(ZeroDivisionError, OverflowError, FloatingPointError, OSError, FileNotFoundError),
        *(PermissionError, ImportError, ModuleNotFoundError, Exception),
    )
}


def describe_exception(error: Exception, trace: str) -> dict[str, Any]:
    """An exception as it travels: names of its kind and of that kind's bases, and its message."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    only = error.args[0] if len(error.args) == 1 else None
    message = only if isinstance(only, str) else str(error)
    return {"kinds": kinds, "message": message, "trace": trace[-_TAIL:]}


def remote_exception(described: Any) -> Exception:
    """The exception that a child described, as the nearest kind that this side has."""
    try:
        kinds, message = [str(k) for k in described["kinds"]], str(described["message"])
        trace = str(described["trace"])
    except (KeyError, TypeError) as error:
        return BackendProcessError(f"the process described an error unreadably ({error!r})")
    known = next((name for name in kinds if name in _EXCEPTIONS), "Exception")
    if kinds and known != kinds[0]:
        message = f"{kinds[0]}: {message}"
    exception = _EXCEPTIONS[known](message)
    exception.add_note(f"raised in the backend's process:\n{trace}")
    return exception
