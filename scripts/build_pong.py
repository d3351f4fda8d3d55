"""Builds PufferLib's C Pong from its source distribution, twice, into build/pong.

``plain.so`` is the source as it is; ``tape.so`` the same source with rand() taken from the caller
(envs/pong/native/tape.c). Needs gcc and pip. A second run finds its stamp and does nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from envs.core import MissingDependency
from envs.pong import native_build

RELEASE = "pufferlib-3.0.0"
SDIST_SHA256 = "7df3a3e3f5f894d78d2a1f5374097890aec01473183e748abefe4f3faa10eaa9"
RAYLIB = "raylib-5.5_linux_amd64"
NEEDED = ("LICENSE", "pufferlib/ocean/pong/", "pufferlib/ocean/env_binding.h", f"{RAYLIB}/")

# What setup.py of the release asks for, and -fwrapv -DNDEBUG as Python's own build adds them.
FLAGS = (
    *("-shared", "-fPIC", "-fwrapv", "-DNDEBUG", "-O2", "-flto", "-w"),
    *("-DPLATFORM_DESKTOP", "-DNPY_NO_DEPRECATED_API=NPY_1_7_API_VERSION"),
)

# setup.py imports these names from torch, and has a name error when told to build no C code.
SHIM = {
    "torch/__init__.py": "",
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": (
        "class CUDAExtension: pass\n"
        "class CppExtension: pass\n"
        "class BuildExtension: pass\n"
        "CUDA_HOME = ROCM_HOME = None\n"
    ),
    "sitecustomize.py": "import builtins\nbuiltins.c_extension_paths = []\n",
}


class BuildError(Exception):
    """The build cannot go on; the message is the one line that the user sees."""


def download(directory: Path) -> Path:
    """The source distribution, fetched through pip into ``directory`` and verified."""
    shim = directory / "shim"
    for name, text in SHIM.items():
        (shim / name).parent.mkdir(parents=True, exist_ok=True)
        (shim / name).write_text(text)
    name, version = RELEASE.split("-")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary"]
    command += [":all:", "--no-build-isolation", f"--dest={directory}", f"{name}=={version}"]
    environment = dict(os.environ, PYTHONPATH=str(shim), NO_OCEAN="1", NO_TRAIN="1")
    result = run(command, environment)
    sdist = directory / f"{RELEASE}.tar.gz"
    if result.returncode or not sdist.exists():
        raise BuildError(
            f"pip could not download {RELEASE} ({essence(result.stderr)}); it needs the network, "
            "and in this Python pip and setuptools, which `make setup` installs"
        )
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if digest != SDIST_SHA256:
        raise BuildError(f"{sdist.name} has sha256 {digest}, expected {SDIST_SHA256}")
    return sdist


def unpack(sdist: Path, directory: Path) -> None:
    """The few files that the build needs, without the release's top folder."""
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            member.name = member.name.removeprefix(f"{RELEASE}/")
            if member.isfile() and member.name.startswith(NEEDED):
                archive.extract(member, directory, filter="data")


def compile_module(source: Path, release: Path, target: Path) -> None:
    """One extension module from one C file and raylib."""
    includes = (
        release / "pufferlib/ocean/pong",
        release / RAYLIB / "include",
        sysconfig.get_path("include"),
        np.get_include(),
    )
    command = ["gcc", *FLAGS, *(f"-I{path}" for path in includes), str(source)]
    command += [str(release / RAYLIB / "lib/libraylib.a"), "-lm", "-o", str(target)]
    result = run(command)
    if result.returncode:
        raise BuildError(f"gcc could not compile {source.name}: {essence(result.stderr)}")


def run(
    command: list[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The finished command with its output captured; it has five minutes."""
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} did not finish within five minutes") from None
    except OSError as error:
        raise BuildError(f"cannot run {command[0]}: {error.strerror}") from None


def essence(text: str) -> str:
    """The first line that speaks of an error of its own, or the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    told = (line for line in lines if "error" in line.lower() and "subprocess" not in line)
    return next(told, lines[-1])


def key() -> str:
    """Names a build by everything that goes into it."""
    parts = (SDIST_SHA256, native_build.driver_sha256(), FLAGS, sys.version, np.__version__)
    return hashlib.sha256(repr((parts, platform.machine())).encode()).hexdigest()[:16]


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Waits until no other process or thread builds in this folder."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def is_current(directory: Path) -> bool:
    """Whether what :func:`key` names is there, undamaged."""
    try:
        return native_build.current_build(directory).name == key()
    except MissingDependency:
        return False


def build(directory: Path) -> bool:
    """Make the build that :func:`key` names the current one; False when it already is.

    Everything is made in a temporary folder and renamed into place when it is complete, so an
    interrupted build leaves nothing behind that could be taken for one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with alone(directory):
        if is_current(directory):
            return False
        if shutil.which("gcc") is None:
            raise BuildError("gcc is missing; install a C compiler (Debian: apt-get install gcc)")
        with tempfile.TemporaryDirectory(dir=directory, prefix="unfinished-") as temporary:
            make(directory, Path(temporary))
    return True


def make(directory: Path, work: Path) -> None:
    """Download what is missing, compile in ``work``, and move the results into ``directory``."""
    release = directory / f"{RELEASE}-{SDIST_SHA256[:16]}"
    if not release.is_dir():
        print(f"pong: downloading {RELEASE} (61 MB)", flush=True)
        unpack(download(work), work / "release")
        (work / "release").rename(release)
    print("pong: compiling", flush=True)
    modules, place = work / "modules", directory / key()
    modules.mkdir()
    sources = {
        native_build.PLAIN: release / "pufferlib/ocean/pong/binding.c",
        native_build.TAPE: native_build.DRIVER,
    }
    for name, source in sources.items():
        compile_module(source, release, modules / name)
    record = dict(
        key=key(),
        driver_sha256=native_build.driver_sha256(),
        modules={name: native_build.sha256(modules / name) for name in sources},
    )
    (work / "pointer").write_text(json.dumps(record))
    if place.exists():  # damaged, or left by a build that was interrupted
        place.rename(work / "replaced")
    modules.rename(place)
    os.replace(work / "pointer", native_build.pointer(directory))


def main() -> int:
    began = time.perf_counter()
    try:
        fresh = build(native_build.BUILD_DIRECTORY)
    except BuildError as error:
        print(f"pong: {error}", file=sys.stderr)
        return 1
    state = f"built in {time.perf_counter() - began:.1f} s" if fresh else "is up to date"
    print(f"pong: the C code {state} ({native_build.current_build()})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
