"""The builder: what it says when it cannot build, and that nothing half-made is ever used."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import envs
from envs.pong import native_build
from scripts import build_pong

RELEASED = {
    "pong/pong.h": "47c08b8ed9f90c92bb6569cdc0be6999f1586f5abe11cf7777a6b9861a74f669",
    "pong/binding.c": "e303f54befbb2fe40c265dfaafa9f52f71efcaad2f9950f182bf6d94d5727341",
    "env_binding.h": "559c17719647f18bf8fac328af75eb119a25fd8ed346e77ce127b77f4a8988c8",
}


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """An empty build folder next to the release's files, which are there already."""
    name = f"{build_pong.RELEASE}-{build_pong.SDIST_SHA256[:16]}"
    release = native_build.BUILD_DIRECTORY / name
    assert release.is_dir(), "run `make pong` first"
    (tmp_path / name).symlink_to(release)
    monkeypatch.setattr(native_build, "BUILD_DIRECTORY", tmp_path)
    monkeypatch.setattr(build_pong, "download", lambda directory: pytest.fail("downloads"))
    return tmp_path


def made(directory):
    """Names in a build folder apart from the release's files."""
    return sorted(p.name for p in directory.iterdir() if not p.name.startswith("pufferlib"))


def test_second_run_does_nothing(offline, monkeypatch, capsys):
    assert build_pong.main() == 0
    assert "built in" in capsys.readouterr().out
    monkeypatch.setattr(build_pong, "run", lambda *_: pytest.fail("runs a command"))
    assert build_pong.main() == 0
    assert "up to date" in capsys.readouterr().out
    folder = native_build.current_build()
    assert sorted(p.name for p in folder.iterdir()) == ["plain.so", "tape.so"]


def test_missing_compiler_is_one_line(offline, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(offline))
    assert build_pong.main() == 1
    assert capsys.readouterr().err.splitlines() == [
        "pong: gcc is missing; install a C compiler (Debian: apt-get install gcc)"
    ]
    assert made(offline) == []


@pytest.mark.parametrize("fails_at", [1, 2])
def test_failed_compilation_leaves_nothing(offline, monkeypatch, capsys, fails_at):
    runs = []

    def run(command, environment=None):
        runs.append(command)
        if len(runs) == fails_at:
            return subprocess.CompletedProcess(command, 1, "", "tape.c:1: error: no such thing\nx")
        return original(command, environment)

    original = build_pong.run
    monkeypatch.setattr(build_pong, "run", run)
    assert build_pong.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pong: gcc could not compile ")
    assert line.endswith("tape.c:1: error: no such thing")
    assert made(offline) == []
    with pytest.raises(envs.MissingDependency, match="not built; run `make pong`"):
        native_build.current_build()


def test_interrupted_build_is_not_taken_for_one(offline, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(build_pong.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build_pong.build(offline)
    with pytest.raises(envs.MissingDependency):
        native_build.current_build()
    monkeypatch.undo()
    monkeypatch.setattr(native_build, "BUILD_DIRECTORY", offline)
    assert build_pong.build(offline)
    assert native_build.current_build().is_dir()


def test_two_builds_at_once(offline):
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(build_pong.build, [offline, offline]))
    assert True in results
    assert not build_pong.build(offline)
    assert len(made(offline)) == 2  # the modules' folder and the pointer to it
    assert (native_build.current_build() / native_build.TAPE).stat().st_size > 100_000


def test_changed_driver_asks_for_a_build(offline, monkeypatch):
    build_pong.build(offline)
    monkeypatch.setattr(native_build, "driver_sha256", lambda: "other")
    with pytest.raises(envs.MissingDependency, match="out of date; run `make pong`"):
        native_build.current_build()


DAMAGE = {
    "gone": lambda module: module.unlink(),
    "empty": lambda module: module.write_bytes(b""),
    "cut off": lambda module: module.write_bytes(module.read_bytes()[:9000]),
    "one bit": lambda module: module.write_bytes(b"\x7e" + module.read_bytes()[1:]),
}


@pytest.fixture
def unloaded():
    """As in a process that has loaded none of the modules."""
    loaders = (native_build.binding, native_build.driver)
    for loader in loaders:
        loader.cache_clear()
    yield
    for loader in loaders:
        loader.cache_clear()


@pytest.mark.parametrize("name", [native_build.PLAIN, native_build.TAPE])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_module_is_named_and_built_again(offline, unloaded, name, damage):
    folder = damaged_build(offline, name, damage)
    for interface in ("batched", "simulator"):
        with pytest.raises(
            envs.MissingDependency, match=f"{name} is missing or damaged; run `make pong`"
        ):
            envs.make("pong", "reference", 2, interface=interface)
    assert build_pong.build(offline)
    assert native_build.current_build() == folder
    assert not build_pong.build(offline)


def damaged_build(directory, name, damage):
    """A build with one module damaged, copied from the real one to save a compilation."""
    real = Path(native_build.__file__).resolve().parents[2] / "build" / "pong"
    record = native_build.pointer(real)
    folder = directory / json.loads(record.read_text())["key"]
    shutil.copytree(real / folder.name, folder)
    shutil.copy(record, native_build.pointer(directory))
    DAMAGE[damage](folder / name)
    return folder


@pytest.mark.parametrize("name", [native_build.PLAIN, native_build.TAPE])
def test_module_that_cannot_be_loaded_is_named(offline, unloaded, name):
    """Verified, but not for this machine: what another architecture's build would be."""
    folder = damaged_build(offline, name, "cut off")
    (folder / name).write_bytes(b"no library")
    record = json.loads(native_build.pointer(offline).read_text())
    record["modules"][name] = hashlib.sha256(b"no library").hexdigest()
    native_build.pointer(offline).write_text(json.dumps(record))
    with pytest.raises(envs.MissingDependency, match=f"{name} cannot be loaded .*`make pong`"):
        native_build.binding(name)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"key": "gone", "driver_sha256": "x"}'])
def test_damaged_pointer_is_a_missing_build(tmp_path, text):
    native_build.pointer(tmp_path).write_text(text)
    with pytest.raises(envs.MissingDependency, match="run `make pong`"):
        native_build.current_build(tmp_path)


def test_failed_download_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(native_build, "BUILD_DIRECTORY", tmp_path)
    message = "WARNING: slow\nERROR: No matching distribution found for pufferlib\n"
    monkeypatch.setattr(
        build_pong, "run", lambda c, e=None: subprocess.CompletedProcess(c, 1, "", message)
    )
    assert build_pong.main() == 1
    assert capsys.readouterr().err.splitlines() == [
        "pong: pip could not download pufferlib-3.0.0 (ERROR: No matching distribution found for "
        "pufferlib); it needs the network, and in this Python pip and setuptools, which "
        "`make setup` installs"
    ]
    assert made(tmp_path) == []


def test_another_file_than_the_release_is_refused(tmp_path, monkeypatch):
    def run(command, environment):
        (tmp_path / "pufferlib-3.0.0.tar.gz").write_bytes(b"something else")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(build_pong, "run", run)
    digest = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(build_pong.BuildError, match=f"has sha256 {digest}, expected 7df3a3e3"):
        build_pong.download(tmp_path)


def test_programs_that_cannot_run():
    with pytest.raises(build_pong.BuildError, match="cannot run no-such-program: No such file"):
        build_pong.run(["no-such-program"])


def test_only_what_is_needed_is_unpacked(tmp_path):
    archive = tmp_path / "release.tar.gz"
    names = ["setup.py", "pufferlib/ocean/pong/pong.h", "pufferlib/ocean/snake/snake.h", "LICENSE"]
    with tarfile.open(archive, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(f"{build_pong.RELEASE}/{name}")
            member.size = 2
            tar.addfile(member, io.BytesIO(b"hi"))
    build_pong.unpack(archive, tmp_path / "out")
    found = sorted(p.name for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert found == ["LICENSE", "pong.h"]


def test_compiled_source_is_the_release_untouched():
    """tape.c includes binding.c by name; the files it finds are those of the verified archive."""
    folder = next(native_build.BUILD_DIRECTORY.glob(f"{build_pong.RELEASE}-*"))
    digests = {
        name: hashlib.sha256((folder / "pufferlib/ocean" / name).read_bytes()).hexdigest()
        for name in ("pong/pong.h", "pong/binding.c", "env_binding.h")
    }
    assert digests == RELEASED
