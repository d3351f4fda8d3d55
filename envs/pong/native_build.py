"""Where scripts/build_pong.py puts the compiled C code, and how it is loaded."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.machinery
import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from envs.core import MissingDependency

BUILD_DIRECTORY = Path(__file__).resolve().parents[2] / "build" / "pong"
DRIVER = Path(__file__).parent / "native" / "tape.c"
PLAIN, TAPE = "plain.so", "tape.so"  # the source as it is; the same with rand() from outside


def pointer(directory: Path) -> Path:
    """The file that names the current build for this interpreter: JSON ``{"key": its folder,
    "driver_sha256": of native/tape.c, "modules": {"plain.so": sha256, "tape.so": sha256}}``."""
    return directory / f"current-{sys.implementation.cache_tag}.json"


def driver_sha256() -> str:
    return sha256(DRIVER)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def current_build(directory: Path | None = None) -> Path:
    """The folder of the current build, its modules verified: loading a damaged one can end the
    process.

    Raises:
        MissingDependency: nothing was built, the driver has changed since, or a module is not the
            file that was built.
    """
    directory = BUILD_DIRECTORY if directory is None else directory
    try:
        record = json.loads(pointer(directory).read_text())
        folder, built_from = directory / record["key"], record["driver_sha256"]
        expected = {name: record["modules"][name] for name in (PLAIN, TAPE)}
    except (OSError, ValueError, KeyError, TypeError):
        raise MissingDependency("pong: PufferLib's C code is not built; run `make pong`") from None
    if built_from != driver_sha256():
        raise MissingDependency("pong: the build of the C code is out of date; run `make pong`")
    for name, digest in expected.items():
        file = folder / name
        if not file.is_file() or sha256(file) != digest:
            raise MissingDependency(f"pong: {name} is missing or damaged; run `make pong`")
    return folder


@cache
def binding(name: str) -> ModuleType:
    """The extension module of one build, "plain.so" or "tape.so"; PufferLib calls it binding."""
    path = str(current_build() / name)
    label = f"{Path(name).stem}.binding"  # the last part must be the C code's own name for it
    loader = importlib.machinery.ExtensionFileLoader(label, path)
    spec = importlib.util.spec_from_loader(label, loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise _unloadable(name, error) from error
    return module


def _unloadable(name: str, error: Exception) -> MissingDependency:
    return MissingDependency(f"pong: {name} cannot be loaded ({error}); run `make pong`")


@cache
def driver() -> ctypes.PyDLL:
    """The functions of native/tape.c; they keep the GIL, which guards their static record."""
    binding(TAPE)  # so that a missing build is reported as such
    try:
        library = ctypes.PyDLL(str(current_build() / TAPE))
    except OSError as error:
        raise _unloadable(TAPE, error) from error
    address = ctypes.c_void_p
    for function, arguments in (
        ("tape_reset", 3),
        ("tape_step", 6),
        ("pong_read", 3),
        ("pong_write", 3),
        ("pong_save", 2),
        ("pong_load", 2),
        ("pong_take_log", 3),
    ):
        getattr(library, function).argtypes = [address] * arguments
        getattr(library, function).restype = None
    return library
