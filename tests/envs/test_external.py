"""envs.load: verified folders become backends, and nothing else does."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import envs
from envs import ManifestError, MissingDependency, UnknownName, load
from envs.adapters.process import ProcessSimulator, server_command
from envs.external import MANIFEST, Folder, write_manifest
from envs.noise import draw_reset_noise

ROOT = Path(__file__).parents[2]
PORT = ROOT / "envs" / "cartpole" / "jax_port.py"
ENTRY = {"functional": "port.py:CartPole"}


def candidate(folder, source=None, contract="cartpole", backend=ENTRY, **files):
    """A folder with CartPole's port as port.py, other files beside it, and a manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "port.py").write_text(source or PORT.read_text())
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    write_manifest(folder, name="candidate", contract=contract, backend=backend)
    return folder


def edit(folder, **changes):
    """Changes keys of a folder's manifest; None removes one."""
    path = folder / MANIFEST
    manifest = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in manifest.items() if v is not None}))


def rollout(env, steps=60):
    decision = env.reset(4)
    trace = [decision.observation]
    for count in range(steps):
        decision, outcome = env.step(np.arange(env.num_envs) % 2 ^ count % 2)
        trace.append(np.concatenate([decision.observation.ravel(), outcome.reward]))
    return np.concatenate([part.ravel() for part in trace])


@pytest.mark.parametrize("interface", ["native", "functional", "batched", "simulator"])
def test_a_candidate_has_the_faces_of_a_registered_backend(tmp_path, interface):
    env = load(candidate(tmp_path), 3, interface=interface)
    registered = envs.make("cartpole", "jax", 3, interface=interface)
    assert env.spec == registered.spec
    assert env.num_envs == 3
    assert type(env) is type(registered)


def test_a_copy_of_a_port_gives_what_the_port_gives(tmp_path):
    copy = load(candidate(tmp_path), 3, interface="batched")
    port = envs.make("cartpole", "jax", 3, interface="batched")
    np.testing.assert_array_equal(rollout(copy), rollout(port))


def test_two_versions_of_one_port_live_side_by_side(tmp_path):
    other = PORT.read_text().replace("c.GRAVITY * sin", "2 * c.GRAVITY * sin")
    first = load(candidate(tmp_path / "a"), 2, interface="batched")
    second = load(candidate(tmp_path / "b", other), 2, interface="batched")
    again = load(tmp_path / "a", 2, interface="batched")
    assert not np.array_equal(rollout(first), rollout(second))
    np.testing.assert_array_equal(rollout(first), rollout(again))


def test_files_of_a_folder_import_each_other_and_only_each_other(tmp_path):
    source = (
        PORT.read_text() + "\nfrom . import physics\nfrom .parts.numbers import SCALE\n"
        "class Scaled(CartPole):\n"
        "    def observe(self, state):\n"
        "        decision = super().observe(state)\n"
        "        return decision._replace(observation=physics.scale(decision.observation, SCALE))\n"
    )
    folder = candidate(
        tmp_path,
        source,
        backend={"functional": "port.py:Scaled"},
        physics_py="def scale(x, by):\n    return x * by\n",
        parts__numbers_py="SCALE = 2.0\n",
    )
    scaled, plain = load(folder, 2, interface="batched"), envs.make("cartpole", "jax", 2)
    noise = draw_reset_noise(plain.spec, 4, 0, np.arange(2, dtype=np.uint32))
    np.testing.assert_allclose(scaled.reset(4).observation, 2 * noise.start, rtol=1e-6)
    assert not list(folder.rglob("__pycache__"))


def test_the_code_that_runs_is_the_code_that_was_verified(tmp_path):
    folder = Folder(candidate(tmp_path))
    (tmp_path / "port.py").write_text("raise SystemExit('swapped after the check')")
    assert folder.backend().functional.endswith(".port:CartPole")


def test_a_folder_can_bring_its_own_contract_with_parameters(tmp_path):
    contract = (
        "import dataclasses\nfrom envs.cartpole.contract import make_spec as original\n"
        "def make_spec(version='x'):\n"
        "    return dataclasses.replace(original(), name='own', version=version)\n"
    )
    folder = candidate(tmp_path, contract="contract.py:make_spec", contract_py=contract)
    assert load(folder, interface="batched").spec.name == "own"
    assert load(folder, interface="batched", version="9").spec.version == "9"
    with pytest.raises(UnknownName, match=r"candidate: .*nosuch"):
        load(folder, nosuch=1)


def test_the_digest_is_that_of_the_whole_folder(tmp_path):
    first = Folder(candidate(tmp_path / "a"))
    same = Folder(candidate(tmp_path / "b"))
    other = Folder(candidate(tmp_path / "c", notes_txt="a word"))
    assert first.digest == same.digest != other.digest


def test_a_candidate_can_be_served_by_another_process(tmp_path):
    command = server_command("envs:load", 2, path=str(candidate(tmp_path)), interface="simulator")
    with ProcessSimulator(command, spec=envs.make_spec("cartpole"), cwd=ROOT) as served:
        noise = draw_reset_noise(served.spec, 4, 0, np.arange(2, dtype=np.uint32))
        np.testing.assert_array_equal(
            served.reset(noise).observation, np.asarray(noise.start, np.float32)
        )


# --- bad folders --------------------------------------------------------------------------------

TRAP = "raise SystemExit('this code must not run')"


def trap(folder):
    """A candidate whose code ends the process when it is imported, with a correct manifest."""
    return candidate(folder, TRAP)


def _no_manifest(folder):
    (trap(folder) / MANIFEST).unlink()


def _no_json(folder):
    (trap(folder) / MANIFEST).write_text("{")


def _no_object(folder):
    (trap(folder) / MANIFEST).write_text("[]")


def _missing_key(folder):
    edit(trap(folder), contract=None)


def _unknown_key(folder):
    edit(trap(folder), licence="MIT")


def _name_is_no_text(folder):
    edit(trap(folder), name=7)


def _files_is_a_list(folder):
    edit(trap(folder), files=["port.py"])


def _hash_is_no_text(folder):
    edit(trap(folder), files={"port.py": 1})


def _no_faces(folder):
    edit(trap(folder), backend={})


def _unknown_face(folder):
    edit(trap(folder), backend={"magic": "port.py:CartPole"})


def _changed_file(folder):
    (trap(folder) / "port.py").write_text(TRAP + " # changed")


def _missing_file(folder):
    (trap(folder) / "port.py").unlink()


def _unlisted_file(folder):
    (trap(folder) / "other.py").write_text("")


def _parent_path(folder):
    trap(folder / "inner")
    (folder / "outside.py").write_text("")
    edit(folder / "inner", files={"../outside.py": "0" * 64})
    shutil.move(folder / "inner" / MANIFEST, folder / MANIFEST)


def _absolute_path(folder):
    edit(trap(folder), files={str(folder / "port.py"): "0" * 64})


def _link_out_of_the_folder(folder):
    trap(folder)
    (folder / "link.py").symlink_to(PORT)
    write_manifest(folder, name="candidate", contract="cartpole", backend=ENTRY)


def _entry_without_attribute(folder):
    edit(trap(folder), backend={"functional": "port.py"})


def _entry_is_a_module(folder):
    edit(trap(folder), backend={"functional": "port:CartPole"})


def _entry_not_listed(folder):
    edit(trap(folder), backend={"functional": "envs.py:make"})


def _contract_not_listed(folder):
    edit(trap(folder), contract="contract.py:make_spec")


def _nested_without_end(folder):
    (trap(folder) / MANIFEST).write_text("[" * 100_000)


def _no_utf8(folder):
    (trap(folder) / MANIFEST).write_bytes(b'{"name": "\xff"}')


def _zero_in_a_name(folder):
    edit(trap(folder), files={"a\0b": "0" * 64})


def _half_a_character_in_a_name(folder):
    edit(trap(folder), files={"\ud800": "0" * 64})


def _pipe(folder):
    os.mkfifo(trap(folder) / "pipe.py")
    edit(folder, files={"pipe.py": "0" * 64})


def _manifest_is_a_pipe(folder):
    (trap(folder) / MANIFEST).unlink()
    os.mkfifo(folder / MANIFEST)


def _directory_as_a_file(folder):
    (trap(folder) / "inner").mkdir()
    edit(folder, files={"inner": "0" * 64})


def _links_in_a_ring(folder):
    (trap(folder) / "a.py").symlink_to(folder / "b.py")
    (folder / "b.py").symlink_to(folder / "a.py")
    edit(folder, files={"a.py": "0" * 64})


BAD_FOLDERS = {
    _nested_without_end: "is not JSON",
    _no_utf8: "is not JSON",
    _zero_in_a_name: r"'a\\x00b' names no file",
    _half_a_character_in_a_name: r"'\\ud800' names no file",
    _pipe: "cannot read .*pipe.py: it is no regular file",
    _manifest_is_a_pipe: "cannot read .*manifest.json: it is no regular file",
    _directory_as_a_file: "cannot read .*inner: it is no regular file",
    _links_in_a_ring: "'a.py' names no file",
    _no_manifest: "cannot read .*manifest.json: No such file",
    _no_json: "is not JSON",
    _no_object: "must hold an object",
    _missing_key: r"missing \['contract'\], unknown keys \[\]",
    _unknown_key: r"missing \[\], unknown keys \['licence'\]",
    _name_is_no_text: "name must be text, got 7",
    _files_is_a_list: "files must map names to text",
    _hash_is_no_text: "files must map names to text",
    _no_faces: r"has the faces \[\]; choose from functional, vector, batched, simulator",
    _unknown_face: r"has the faces \['magic'\]; choose from functional",
    _changed_file: "port.py is not the file of the manifest: sha256 .*, expected ",
    _missing_file: "cannot read .*port.py: No such file",
    _unlisted_file: r"does not list: \['other.py'\]",
    _parent_path: r"'\.\./outside.py' leads out of the folder",
    _absolute_path: "leads out of the folder",
    _link_out_of_the_folder: "'link.py' leads out of the folder",
    _entry_without_attribute: "\"file.py:attribute\", got 'port.py'",
    _entry_is_a_module: "\"file.py:attribute\", got 'port:CartPole'",
    _entry_not_listed: "envs.py is not among files",
    _contract_not_listed: "contract.py is not among files",
}


@pytest.mark.parametrize("spoil", BAD_FOLDERS, ids=lambda f: f.__name__.strip("_"))
def test_bad_folders_are_named_before_any_code_runs(tmp_path, spoil):
    spoil(tmp_path)
    with pytest.raises(ManifestError, match=BAD_FOLDERS[spoil]):
        load(tmp_path)


def test_an_entry_that_the_file_does_not_have_lists_what_it_has(tmp_path):
    folder = candidate(tmp_path, backend={"functional": "port.py:Cart"})
    with pytest.raises(ManifestError, match=r"has no 'Cart'; it has .*State.*CartPole"):
        load(folder)


BAD_SOURCES = {
    "no UTF-8": (b"# caf\xe9\n", "SyntaxError"),
    "no Python": (b"def", "SyntaxError"),
    "nested without end": (b"(" * 50_000, "cannot be imported"),
    "ends the process": (b"raise SystemExit(3)", r"SystemExit\(3\)"),
    "needs what is not there": (b"import no_such_module", "ModuleNotFoundError"),
    "breaks": (b"1 / 0", "ZeroDivisionError"),
}


@pytest.mark.parametrize("case", BAD_SOURCES)
def test_a_file_that_cannot_be_imported_is_named(tmp_path, case):
    source, words = BAD_SOURCES[case]
    candidate(tmp_path)
    (tmp_path / "port.py").write_bytes(source)
    write_manifest(tmp_path, name="candidate", contract="cartpole", backend=ENTRY)
    with pytest.raises(ManifestError, match=f"port.py cannot be imported: .*{words}|{words}"):
        load(tmp_path)


def test_a_dependency_that_is_missing_is_said_to_be(tmp_path):
    source = "from envs.core import MissingDependency\nraise MissingDependency('no such chip')\n"
    with pytest.raises(MissingDependency, match="no such chip"):
        load(candidate(tmp_path, source))


@pytest.mark.parametrize("entry", ["__init__.py:CartPole", "inner/__init__.py:CartPole"])
def test_an_entry_may_be_a_package(tmp_path, entry):
    file = tmp_path / entry.split(":")[0]
    file.parent.mkdir(exist_ok=True)
    file.write_text(PORT.read_text())
    write_manifest(tmp_path, name="c", contract="cartpole", backend={"functional": entry})
    assert load(tmp_path, 2).spec == envs.make_spec("cartpole")


def test_bad_arguments_of_load_are_named(tmp_path):
    folder = candidate(tmp_path)
    with pytest.raises(UnknownName, match="unknown interface 'magic'"):
        load(folder, interface="magic")
    with pytest.raises(ValueError, match="num_envs must be a positive integer, got 0"):
        load(folder, 0)
    with pytest.raises(UnknownName, match=r"cartpole: .*gravity"):
        load(folder, gravity=3)
    with pytest.raises(UnknownName, match="unknown environment 'tetris'"):
        load(candidate(tmp_path / "b", contract="tetris"))
    with pytest.raises(ManifestError, match=r"cannot read .*manifest.json"):
        load(tmp_path / "nowhere")


def test_a_candidate_without_a_simulator_says_so(tmp_path):
    source = "from envs.cartpole.reference import make_batched as make\n"
    folder = candidate(tmp_path, source, backend={"batched": "port.py:make"})
    with load(folder, 1, interface="batched") as env:
        env.reset(0)
    with pytest.raises(UnknownName, match="candidate declares no simulator"):
        load(folder, 1, interface="simulator")
