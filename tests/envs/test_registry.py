"""make and its relatives: the right thing for right names, the choices for wrong ones."""

import sys
import textwrap

import numpy as np
import pytest

import envs
from envs import registry
from envs.batched import BatchedEnv
from envs.core import Backend, EnvSpec, VectorFunctionalEnv
from envs.simulator import Simulator


@pytest.fixture
def toy_room(monkeypatch, tmp_path):
    """A second set of rooms with one environment that has parameters and odd backends."""
    room = tmp_path / "toyroom"
    room.mkdir()
    (tmp_path / "no_room").mkdir()  # a folder without a contract is no environment
    (tmp_path / "no_room/__init__.py").write_text("")
    (room / "contract.py").write_text("")
    (room / "__init__.py").write_text(
        textwrap.dedent(
            """
            import dataclasses
            import envs
            from envs.core import Backend, Ports

            def make_spec(wind: float = 0.0, size: int = 3):
                return dataclasses.replace(
                    envs.make_spec("cartpole"), name="toyroom",
                    parameters={"wind": wind, "size": size}, ports=Ports(("slow",), ("fast",)),
                )

            BACKENDS = {
                "reference": Backend(batched="envs.cartpole.reference:make_batched"),
                "slow": Backend(functional="envs.cartpole.jax_port:CartPole"),
                "fast": Backend(vector="envs.toyroom:make_vector"),
                "lost": Backend(batched="envs.toyroom_lost:make_batched"),
            }

            def make_vector(spec, num_envs):
                return "vector", spec.parameters["wind"], num_envs
            """
        )
    )
    known = registry.list_environments()
    monkeypatch.setattr(registry, "list_environments", lambda: sorted([*known, "toyroom"]))
    monkeypatch.setattr("envs.__path__", [*envs.__path__, str(tmp_path)])
    yield "toyroom"
    sys.modules.pop("envs.toyroom", None)
    vars(envs).pop("toyroom", None)


def test_environments_are_the_folders_with_a_contract(monkeypatch, tmp_path):
    assert "cartpole" in envs.list_environments()
    assert envs.list_environments() == sorted(envs.list_environments())
    assert "adapters" not in envs.list_environments()
    for name, contract in (("zebra", True), ("ant", True), ("empty", False)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        if contract:
            (tmp_path / name / "contract.py").write_text("")
    (tmp_path / "contract.py").write_text("")
    monkeypatch.setattr(registry, "_ROOMS", tmp_path)
    assert envs.list_environments() == ["ant", "zebra"]


@pytest.mark.parametrize("name", registry.list_environments())
def test_every_room_names_a_reference_first_and_ports_that_exist(name):
    backends = envs.list_backends(name)
    assert backends[0] == "reference"
    ports = envs.make_spec(name).ports
    assert {*ports.cpu, *ports.gpu} <= set(backends)
    assert "generated" not in backends
    spec = envs.make_spec(name)
    assert (spec.name, EnvSpec.from_json(spec.to_json())) == (name, spec)


# --- the faces of one environment ---------------------------------------------------------------

FACES = {
    ("native", "jax"): VectorFunctionalEnv,
    ("native", "reference"): BatchedEnv,
    ("functional", "jax"): VectorFunctionalEnv,
    ("batched", "jax"): BatchedEnv,
    ("batched", "reference"): BatchedEnv,
    ("simulator", "jax"): Simulator,
    ("simulator", "reference"): Simulator,
}


@pytest.mark.parametrize(("interface", "backend"), FACES)
def test_make_gives_the_face_that_was_asked_for(interface, backend):
    env = envs.make("cartpole", backend, 3, interface=interface)
    assert isinstance(env, FACES[interface, backend])
    assert env.spec == envs.make_spec("cartpole")
    assert env.num_envs == 3


def test_defaults_are_one_environment_of_the_preferred_port():
    env = envs.make("cartpole")
    assert isinstance(env, VectorFunctionalEnv)
    assert env.num_envs == 1


def test_generated_is_the_first_port_for_the_device(toy_room):
    assert envs.resolve_backend("cartpole", "generated") == "jax"
    assert envs.resolve_backend(toy_room, "generated", "cpu") == "slow"
    assert envs.resolve_backend(toy_room, "generated", "gpu") == "fast"
    assert envs.resolve_backend(toy_room, "lost") == "lost"
    assert envs.make(toy_room, num_envs=5, device="gpu", wind=0.5) == ("vector", 0.5, 5)


def test_parameters_reach_the_contract(toy_room):
    spec = envs.make_spec(toy_room, wind=2.0)
    assert dict(spec.parameters) == {"wind": 2.0, "size": 3}
    assert envs.make(toy_room, "slow", wind=2.0).spec == spec
    assert envs.make(toy_room, "slow").spec != spec


def test_which_backends_run_inside_a_jitted_program(toy_room):
    assert envs.is_functional("cartpole", "jax")
    assert not envs.is_functional("cartpole", "reference")
    assert envs.is_functional(toy_room, "fast")


# --- wrong names --------------------------------------------------------------------------------

WRONG = {
    "environment": (
        lambda room: envs.make("cartpool"),
        r"unknown environment 'cartpool'; choose from .*cartpole",
    ),
    "environment of a spec": (
        lambda room: envs.make_spec("x"),
        "unknown environment 'x'; .*cartpole",
    ),
    "environment's backends": (lambda room: envs.list_backends("x"), "unknown environment 'x'"),
    "environment's renderer": (lambda room: envs.renderer("x"), "unknown environment 'x'"),
    "a module that is no room": (
        lambda room: envs.make("adapters"),
        "unknown environment 'adapters'",
    ),
    "a path": (lambda room: envs.make("../envs/cartpole"), "unknown environment"),
    "backend": (
        lambda room: envs.make("cartpole", "rust"),
        "cartpole has no backend 'rust'; choose from generated, reference, jax",
    ),
    "interface": (
        lambda room: envs.make("cartpole", interface="gym"),
        "unknown interface 'gym'; choose from native, functional, batched, simulator, gymnasium",
    ),
    "parameter": (
        lambda room: envs.make(room, "slow", wnid=1.0),
        "toyroom: unknown parameter 'wnid'; choose from wind, size",
    ),
    "parameter where there are none": (
        lambda room: envs.make("cartpole", gravity=1.0),
        "cartpole: unknown parameter 'gravity'; choose from none at all",
    ),
    "functional face of a NumPy backend": (
        lambda room: envs.make("cartpole", "reference", interface="functional"),
        "cartpole/reference cannot run inside a jitted program; use interface=batched",
    ),
    "simulator that is not declared": (
        lambda room: envs.make(room, "reference", interface="simulator"),
        "toyroom/reference declares no simulator",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_names_are_answered_with_the_choices(case, toy_room):
    call, message = WRONG[case]
    with pytest.raises(envs.UnknownName, match=message):
        call(toy_room)


@pytest.mark.parametrize("num_envs", [0, -1, 1.5, "many"])
@pytest.mark.parametrize("interface", registry.INTERFACES)
def test_bad_num_envs_is_refused_for_every_interface(num_envs, interface):
    with pytest.raises(ValueError, match="num_envs must be a positive integer"):
        envs.make("cartpole", "reference", num_envs, interface=interface)


def test_gymnasium_face_is_of_one_environment():
    with pytest.raises(ValueError, match="interface=gymnasium needs num_envs=1, got 2"):
        envs.make("cartpole", num_envs=2, interface="gymnasium")


def test_a_backend_that_can_not_be_imported_says_which_module(toy_room):
    with pytest.raises(ModuleNotFoundError, match="toyroom_lost"):
        envs.make(toy_room, "lost", interface="batched")
    envs.make(toy_room, "slow")  # the others are not touched by it


def test_build_takes_a_backend_from_anywhere():
    entry = Backend(functional="envs.cartpole.jax_port:CartPole")
    env = registry.build(entry, envs.make_spec("cartpole"), 2, "batched", "somewhere/else")
    assert env.reset(0).observation.shape == (2, 4)
    with pytest.raises(envs.UnknownName, match="somewhere/else declares no simulator"):
        registry.build(Backend(), envs.make_spec("cartpole"), 2, "simulator", "somewhere/else")


def test_renderer_is_found_where_a_room_has_one(toy_room):
    render = envs.renderer("cartpole")
    fields = {name: np.zeros((), f.dtype) for name, f in envs.make_spec("cartpole").state.items()}
    assert render(fields, envs.make_spec("cartpole")).dtype == np.uint8
    assert envs.renderer(toy_room) is None
