"""Backends outside the registry: a folder with a manifest, its files verified before any import.

``manifest.json``::

    {"name": "cartpole-candidate-7",
     "contract": "cartpole",                       a registered name, or "file.py:make_spec"
     "backend": {"functional": "port.py:Port"},    the faces of envs.core.Backend
     "files": {"port.py": "<sha256>", ...}}        everything in the folder

The code runs in this process with all its rights. For code that isn't trusted, serve the folder
from a sandboxed process (``envs.adapters.process``, factory ``envs:load``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from envs.checks import check_num_envs
from envs.core import Backend, EnvSpec, MissingDependency
from envs.registry import INTERFACES, UnknownName, build, call_factory, make_spec

MANIFEST = "manifest.json"
_KEYS = {"name", "contract", "backend", "files"}
_FACES = tuple(field.name for field in dataclasses.fields(Backend))


class ManifestError(ValueError):
    """A folder that isn't what its manifest says, or a manifest that says nothing usable."""


def load(
    path: str | Path, num_envs: int = 1, *, interface: str = "native", **parameters: Any
) -> Any:
    """An environment on the backend in a folder.

    Args:
        path: the folder that holds manifest.json.
        interface, parameters: as for :func:`envs.make`.

    Raises:
        ManifestError: no manifest, an unknown key, a file that is missing, not listed, outside
            the folder, no regular file, or of another hash; a file that cannot be imported (its
            own exception is the cause); an entry that does not exist. No code has run then,
            except in the last two cases.
        MissingDependency: a file asks for something that is not installed.
        UnknownName: an unknown interface, contract or parameter.
    """
    if interface not in INTERFACES:
        raise UnknownName(f"unknown interface {interface!r}; choose from {', '.join(INTERFACES)}")
    count = check_num_envs(num_envs)
    folder = Folder(path)
    spec = folder.spec(**parameters)
    return build(folder.backend(), spec, count, interface, folder.name)


def write_manifest(
    path: str | Path, *, name: str, contract: str, backend: Mapping[str, str]
) -> Path:
    """Write the manifest of everything that lies in a folder; arguments as in the file."""
    root = Path(path)
    manifest = dict(name=name, contract=contract, backend=dict(backend), files=_hashes(root))
    target = root / MANIFEST
    target.write_text(json.dumps(manifest, indent=1) + "\n")
    return target


def _hashes(root: Path) -> dict[str, str]:
    files = sorted(p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {
        p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in files
        if p != root / MANIFEST
    }


class Folder:
    """A verified folder; its modules are imported, from the verified bytes, when they are used.

    Attributes:
        name: from the manifest.
        digest: SHA-256 of the manifest, so of everything: the identity of the backend.
    """

    def __init__(self, path: str | Path) -> None:
        self.root = Path(path).resolve()
        manifest, text = _read_manifest(self.root)
        self.name: str = manifest["name"]
        self.digest = hashlib.sha256(text).hexdigest()
        self._contract: str = manifest["contract"]
        self._entries: dict[str, str] = manifest["backend"]
        self._sources = _verify(self.root, manifest["files"])
        for entry in [*self._entries.values(), *([self._contract] * (":" in self._contract))]:
            _check_entry(self.root, entry, self._sources)
        self._package = _install(self)

    def spec(self, **parameters: Any) -> EnvSpec:
        """The contract under these rule parameters."""
        if ":" not in self._contract:
            return make_spec(self._contract, **parameters)
        module, attribute = self._target(self._contract).split(":")
        factory = getattr(importlib.import_module(module), attribute)
        return call_factory(self.name, factory, parameters)

    def backend(self) -> Backend:
        """The folder's entries with importable module names."""
        return Backend(**{face: self._target(entry) for face, entry in self._entries.items()})

    def _target(self, entry: str) -> str:
        file, attribute = entry.split(":")
        module = ".".join((self._package, *_module_parts(file)))
        try:
            found = importlib.import_module(module)
        except MissingDependency:
            raise
        except (Exception, SystemExit) as error:  # a file's code may do anything
            raise ManifestError(f"{self.root / file} cannot be imported: {error!r}") from error
        if not hasattr(found, attribute):
            names = ", ".join(name for name in vars(found) if not name.startswith("_"))
            raise ManifestError(f"{self.root / file} has no {attribute!r}; it has {names}")
        return f"{module}:{attribute}"


# --- reading and verifying ----------------------------------------------------------------------


def _read_manifest(root: Path) -> tuple[dict[str, Any], bytes]:
    where = root / MANIFEST
    text = _read(where)
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{where} is not JSON: {error}") from None
    if not isinstance(manifest, dict):
        raise ManifestError(f"{where} must hold an object")
    missing, unknown = _KEYS - set(manifest), set(manifest) - _KEYS
    if missing or unknown:
        raise ManifestError(f"{where}: missing {sorted(missing)}, unknown keys {sorted(unknown)}")
    for key in ("name", "contract"):
        if not isinstance(manifest[key], str) or not manifest[key]:
            raise ManifestError(f"{where}: {key} must be text, got {manifest[key]!r}")
    for key in ("backend", "files"):
        table = manifest[key]
        if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
            raise ManifestError(f"{where}: {key} must map names to text, got {table!r}")
    faces = manifest["backend"]
    if not faces or not set(faces) <= set(_FACES):
        raise ManifestError(
            f"{where}: backend has the faces {sorted(faces)}; choose from {', '.join(_FACES)}"
        )
    return manifest, text


def _verify(root: Path, files: Mapping[str, str]) -> dict[str, bytes]:
    """The bytes of every file, or a ManifestError at the first that isn't as listed."""
    contents = {}
    for name, expected in files.items():
        contents[name] = _read_inside(root, name)
        actual = hashlib.sha256(contents[name]).hexdigest()
        if actual != expected.lower():
            raise ManifestError(
                f"{root / name} is not the file of the manifest: "
                f"sha256 {actual}, expected {expected}"
            )
    unlisted = sorted(set(_hashes(root)) - set(files))
    if unlisted:
        raise ManifestError(f"{root} holds files that the manifest does not list: {unlisted}")
    return contents


def _read_inside(root: Path, name: str) -> bytes:
    relative = PurePosixPath(name)
    path = root / relative
    escapes = relative.is_absolute() or ".." in relative.parts
    try:
        escapes = escapes or not path.resolve().is_relative_to(root)
    except (OSError, ValueError, RuntimeError) as error:  # no such name can be; links in a ring
        raise ManifestError(f"{root / MANIFEST}: {name!r} names no file ({error})") from None
    if escapes:
        raise ManifestError(f"{root / MANIFEST}: {name!r} leads out of the folder")
    return _read(path)


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe would keep us waiting
            raise ManifestError(f"cannot read {path}: it is no regular file")
        return path.read_bytes()
    except OSError as error:
        raise ManifestError(f"cannot read {path}: {error.strerror}") from None


def _check_entry(root: Path, entry: str, files: Mapping[str, bytes]) -> None:
    file, colon, attribute = entry.partition(":")
    parts = PurePosixPath(file).with_suffix("").parts
    if not (colon and file.endswith(".py") and all(p.isidentifier() for p in (*parts, attribute))):
        raise ManifestError(f'{root / MANIFEST}: an entry is "file.py:attribute", got {entry!r}')
    if file not in files:
        raise ManifestError(f"{root / MANIFEST}: entry {entry!r}, but {file} is not among files")


def _module_parts(file: str) -> tuple[str, ...]:
    """Where a file stands in its folder's package; an ``__init__.py`` is the package itself."""
    parts = PurePosixPath(file).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


# --- importing ----------------------------------------------------------------------------------


class _VerifiedSources(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports of one folder's package, from bytes that were verified; nothing is read again."""

    def __init__(self, package: str, root: Path, sources: Mapping[str, bytes]) -> None:
        self.packages = {package}
        self.modules: dict[str, tuple[Path, bytes]] = {package: (root, b"")}
        for name, data in sorted(sources.items()):
            path = PurePosixPath(name)
            if path.suffix == ".py":
                self._add(package, root, path.with_suffix("").parts, (root / path, data))

    def _add(
        self, package: str, root: Path, parts: tuple[str, ...], source: tuple[Path, bytes]
    ) -> None:
        for depth in range(1, len(parts)):  # the folders on the way are packages
            inner = ".".join((package, *parts[:depth]))
            self.packages.add(inner)
            self.modules.setdefault(inner, (root.joinpath(*parts[:depth]), b""))
        self.modules[".".join((package, *_module_parts("/".join(parts))))] = source

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.modules:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=str(self.modules[fullname][0]))
        spec.has_location = True
        if fullname in self.packages:
            spec.submodule_search_locations = []  # nothing to find for Python's own finders
        return spec

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self.modules[fullname][1])

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_source(fullname), str(self.modules[fullname][0]))


def _install(folder: Folder) -> str:
    """Make the folder importable under a name of its own; unchanged, it keeps the name."""
    identity = f"{folder.digest} {folder.root}".encode()
    package = f"_external_{hashlib.sha256(identity).hexdigest()[:24]}"
    installed = any(
        isinstance(f, _VerifiedSources) and package in f.packages for f in sys.meta_path
    )
    if not installed:
        sys.meta_path.insert(0, _VerifiedSources(package, folder.root, folder._sources))
    return package
