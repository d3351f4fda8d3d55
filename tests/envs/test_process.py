"""A backend in another process is the same backend, and every failure of the process is named."""

import gc
import io
import json
import os
import signal
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import envs
from envs import ActionError, UnknownName
from envs.adapters.child import (
    BackendDiedError,
    BackendProcessError,
    BackendTimeoutError,
    Child,
    Timeouts,
)
from envs.adapters.process import ProcessBatched, ProcessSimulator, _connect, server_command
from envs.adapters.process_server import answer, build, encode_answer, greeting
from envs.core import Capabilities, EnvSpec, LifecycleError
from envs.noise import draw_reset_noise, draw_step_noise
from envs.wire import read_frame
from tests.fixtures.misbehaving import walk
from tests.fixtures.walk import make_spec

ROOT = Path(__file__).parents[2]
NUM_ENVS = 3
ROWS = np.arange(NUM_ENVS, dtype=np.uint32)
SPEC = make_spec()


def connect(factory, kind=ProcessSimulator, options=None, **parameters):
    if ":" not in factory:
        factory = f"tests.fixtures.misbehaving:{factory}"
    return kind(server_command(factory, NUM_ENVS, **parameters), cwd=ROOT, **(options or {}))


def resets(step):
    return draw_reset_noise(SPEC, 7, step, ROWS)


def step(simulator, count=0, actions=(0, 1, 2)):
    return simulator.step(
        np.array(actions), draw_step_noise(SPEC, 7, count, ROWS), resets(count + 1)
    )


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, tuple):
        for left, right in zip(a, b, strict=True):
            assert_same(left, right)
    else:
        assert a == b


def assert_gone(pid):
    """Neither running nor a zombie."""
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# --- the same backend -------------------------------------------------------------------------


def test_a_served_simulator_gives_what_the_simulator_gives():
    with connect("walk") as served, walk(NUM_ENVS) as direct:
        assert served.spec == direct.spec
        assert (served.num_envs, served.capabilities) == (NUM_ENVS, direct.capabilities)
        assert_same(served.reset(resets(0)), direct.reset(resets(0)))
        for count in range(30):
            assert_same(step(served, count), step(direct, count))
            assert_same(served.get_state(), direct.get_state())
        saved, there = served.snapshot(), direct.snapshot()
        assert saved == there
        fields = {"position": np.int32([1, 2, 3]), "steps": np.int32([4, 5, 11])}
        assert_same(served.set_state(fields), direct.set_state(fields))
        assert_same(step(served), step(direct))
        assert_same(served.restore(saved), direct.restore(saved))
        assert_same(step(served), step(direct))


def test_a_served_batched_env_gives_what_the_batched_env_gives():
    with connect("walk", ProcessBatched, face="batched") as served, walk(3, "batched") as direct:
        assert_same(served.reset(5), direct.reset(5))
        for _ in range(30):
            assert_same(served.step(np.array([0, 1, 2])), direct.step(np.array([0, 1, 2])))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "jax"])
def test_registered_backends_can_be_served(backend):
    options = dict(backend=backend, num_envs=NUM_ENVS, interface="simulator")
    direct = envs.make("cartpole", **options)
    del options["num_envs"]
    with connect("envs:make", name="cartpole", **options) as served, direct:
        rows, spec = ROWS, direct.spec
        assert_same(
            served.reset(draw_reset_noise(spec, 1, 0, rows)),
            direct.reset(draw_reset_noise(spec, 1, 0, rows)),
        )
        for count in range(1, 40):
            noise = spec.StepNoise(), draw_reset_noise(spec, 1, count, rows)
            assert_same(served.step([0, 1, 1], *noise), direct.step([0, 1, 1], *noise))
        assert_same(served.get_state(), direct.get_state())


def test_rule_parameters_and_capabilities_come_from_the_child():
    with connect("walk", max_episode_steps=4) as served:
        assert served.spec == make_spec(max_episode_steps=4)
        assert served.spec.max_episode_steps == 4
    with connect("incapable") as served:
        assert not served.capabilities.snapshot
        served.reset(resets(0))
        with pytest.raises(LifecycleError, match="snapshot=False"):
            served.snapshot()


def test_the_contract_is_compared_where_one_is_expected():
    with connect("walk", options=dict(spec=SPEC)) as served:
        assert served.spec == SPEC
    with pytest.raises(ValueError, match=r"another contract; different: .*parameters"):
        connect("walk", options=dict(spec=SPEC), max_episode_steps=4)


def test_taps_are_passed_on():
    with connect("misbehave", trouble="prints") as served:
        served.reset(resets(0))
        step(served)
        assert_same(served.taps(), {"calls": np.array([1, 1, 1])})


# --- what a child may do ----------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["prints", "chats"])
def test_what_a_child_prints_never_reaches_the_channel(trouble):
    with connect("misbehave", trouble=trouble) as served, walk(NUM_ENVS) as direct:
        assert_same(served.reset(resets(0)), direct.reset(resets(0)))
        for count in range(4):
            assert_same(step(served, count), step(direct, count))
        assert served.child.stderr_tail()


ERRORS = {
    "raises_value_error": (ValueError, "the seventh row is odd"),
    "raises_action_error": (ActionError, "no such move"),
    "raises_own_error": (KeyError, "'OwnError: that thing'"),
    "raises_zero_division": (ZeroDivisionError, "integer division or modulo by zero"),
}


@pytest.mark.parametrize("trouble", ERRORS)
def test_errors_come_back_as_their_kind_and_leave_the_child_usable(trouble):
    kind, message = ERRORS[trouble]
    with connect("misbehave", trouble=trouble) as served:
        served.reset(resets(0))
        step(served)
        with pytest.raises(kind) as caught:
            step(served)
        assert (type(caught.value), str(caught.value)) == (kind, message)
        assert "misbehaving.py" in caught.value.__notes__[0]  # the child's own traceback
        step(served)


def test_an_answer_that_cannot_travel_is_an_error_of_the_child():
    with connect("misbehave", trouble="prints") as served:
        served.reset(resets(0))
        with pytest.raises(TypeError, match=r"int\(\) argument|wire form|not 'set'"):
            served.get_state()
        step(served)


# --- deaths -----------------------------------------------------------------------------------

DEATHS = {
    "exits": ("ended with exit status 3 during step", "about to leave"),
    "leaves": ("ended with exit status 5 during step", ""),
    "is_killed": ("was killed by SIGKILL during step", "about to be killed"),
}


@pytest.mark.parametrize("trouble", DEATHS)
def test_a_death_in_a_step_is_named_with_the_last_words(trouble):
    how, words = DEATHS[trouble]
    served = connect("misbehave", trouble=trouble)
    served.reset(resets(0))
    step(served)
    with pytest.raises(BackendDiedError, match=how) as caught:
        step(served)
    assert words in str(caught.value)
    with pytest.raises(BackendDiedError, match="already ended"):
        step(served)
    assert_gone(served.child.pid)
    served.close()
    with pytest.raises(LifecycleError, match="after close"):
        step(served)


def test_a_child_killed_between_two_calls_is_named():
    with connect("walk") as served:
        served.reset(resets(0))
        os.kill(served.child.pid, signal.SIGKILL)
        with pytest.raises(BackendDiedError, match="was killed by SIGKILL during step"):
            step(served)
        assert_gone(served.child.pid)


def test_a_child_that_hangs_is_killed_when_its_time_is_over():
    with connect("misbehave", trouble="hangs") as served:
        served.reset(resets(0))
        step(served)
        served.child.timeouts = Timeouts(call=0.3)
        with pytest.raises(BackendTimeoutError, match=r"no answer to step within 0.3 s") as caught:
            step(served)
        assert "about to hang" in str(caught.value)
        assert_gone(served.child.pid)


def test_a_child_that_never_gets_ready_is_killed():
    with pytest.raises(BackendTimeoutError, match=r"no answer to start within 0.5 s"):
        connect("hang", options=dict(timeouts=Timeouts(start=0.5)))


def test_a_child_that_stops_reading_does_not_block_the_writer():
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    child = Child(command, timeouts=Timeouts(call=0.3))
    with pytest.raises(BackendTimeoutError, match="no answer to reset"):
        child.call("reset", np.zeros(1 << 20))
    assert_gone(child.pid)


def test_an_interrupt_ends_the_child_so_that_no_stale_answer_can_be_read(monkeypatch):
    def interrupted(size, deadline):
        raise KeyboardInterrupt

    with connect("walk") as served:
        served.reset(resets(0))
        monkeypatch.setattr(served.child, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(served)
        monkeypatch.undo()
        with pytest.raises(BackendDiedError, match="interrupted during step"):
            step(served)
        assert_gone(served.child.pid)


def test_close_ends_the_child_and_can_be_repeated():
    served = connect("walk")
    served.close()
    served.close()
    assert_gone(served.child.pid)
    with pytest.raises(LifecycleError, match="after close"):
        served.reset(resets(0))


def test_a_child_that_ignores_the_end_of_its_input_is_killed_on_close():
    code = "import time, sys; sys.stdin.read(); time.sleep(3600)"
    child = Child([sys.executable, "-c", code], timeouts=Timeouts(close=0.2))
    child.close()
    assert_gone(child.pid)


def test_a_forgotten_environment_takes_its_child_along():
    served = connect("walk")
    pid, gone = served.child.pid, weakref.ref(served.child)
    del served
    gc.collect()
    assert gone() is None
    assert_gone(pid)


# --- bad input --------------------------------------------------------------------------------

GIBBERISH = "import sys; sys.stdin.close(); print('hello, this is no frame at all')"
BAD_STARTS = {
    "no command": (lambda: ProcessSimulator([]), ValueError, "list of arguments"),
    "command as text": (lambda: ProcessSimulator("python"), ValueError, "list of arguments"),
    "no such program": (
        lambda: ProcessSimulator(["no-such-program"]),
        BackendProcessError,
        "cannot start 'no-such-program'",
    ),
    "a program that speaks otherwise": (
        lambda: ProcessSimulator([sys.executable, "-c", GIBBERISH]),
        BackendProcessError,
        "unreadable answer to start: this is no frame: it begins with b'hello",
    ),
    "a program that says nothing": (
        lambda: ProcessSimulator([sys.executable, "-c", "raise SystemExit('not today')"]),
        BackendDiedError,
        "exit status 1 during start(?s:.*)not today",
    ),
    "no such module": (lambda: connect("no_such:thing"), ModuleNotFoundError, "no_such"),
    "no such factory": (
        lambda: connect("tests.fixtures.walk:thing"),
        AttributeError,
        "no attribute 'thing'",
    ),
    "no factory at all": (
        lambda: ProcessSimulator(server_command("walk", 2), cwd=ROOT),
        ValueError,
        "must be \"module:attribute\", got 'walk'",
    ),
    "a factory of something else": (lambda: connect("nothing"), TypeError, "gave a NoneType"),
    "an unknown parameter": (lambda: connect("walk", nosuch=1), TypeError, "nosuch"),
    "an unknown environment": (
        lambda: connect("envs:make", name="tetris"),
        UnknownName,
        "unknown environment 'tetris'",
    ),
    "parameters that are no object": (
        lambda: ProcessSimulator([*server_command("a:b", 2)[:-1], "[1]"], cwd=ROOT),
        ValueError,
        "must be a JSON object",
    ),
    "parameters that are no JSON": (
        lambda: ProcessSimulator([*server_command("a:b", 2)[:-1], "{"], cwd=ROOT),
        ValueError,
        "not JSON",
    ),
    "num_envs of zero": (
        lambda: ProcessSimulator(server_command("tests.fixtures.misbehaving:walk", 0), cwd=ROOT),
        ValueError,
        "num_envs must be a positive integer, got 0",
    ),
    "num_envs is no number": (
        lambda: ProcessSimulator(server_command("a:b", "two"), cwd=ROOT),  # type: ignore
        BackendDiedError,
        "exit status 2(?s:.*)invalid int value: 'two'",
    ),
    "the other face": (
        lambda: connect("walk", face="batched"),
        ValueError,
        "serves a batched, not a simulator",
    ),
    "the other face, the other way round": (
        lambda: connect("walk", ProcessBatched),
        ValueError,
        "serves a simulator, not a batched",
    ),
}


@pytest.mark.parametrize("name", BAD_STARTS)
def test_bad_starts_are_named(name):
    start, kind, message = BAD_STARTS[name]
    with pytest.raises(kind, match=message):
        start()


def test_an_answer_of_the_wrong_kind_is_named():
    with (
        connect("wrong_answers") as served,
        pytest.raises(BackendProcessError, match="answered reset with a list, not a Decision"),
    ):
        served.reset(resets(0))


def test_unknown_calls_are_refused_by_the_server():
    with (
        connect("walk") as served,
        pytest.raises(ValueError, match="no call '__init__'; it has reset, step"),
    ):
        served.child.call("__init__")


# --- the serving side, in this process ----------------------------------------------------------


def test_the_server_describes_what_it_serves():
    described = greeting(build("tests.fixtures.misbehaving:walk", 2, '{"face": "batched"}'))
    assert (described["face"], described["num_envs"]) == ("batched", 2)
    assert EnvSpec.from_json(json.loads(described["spec"])) == SPEC
    assert Capabilities(**described["capabilities"]) == Capabilities()


class Greeter:
    """A child as far as its greeting."""

    closed = False

    def __init__(self, space):
        spec = dict(SPEC.to_json(), observation_space=space)
        self.words = dict(
            face="simulator", spec=json.dumps(spec), num_envs=2, capabilities=vars(Capabilities())
        )

    def greeting(self):
        return self.words

    def close(self):
        self.closed = True


def box(*shape, **changes):
    return dict(kind="Box", low=0, high=1, shape=shape, dtype="float32") | changes


BAD_SPACES = {
    "fills the memory": box(1 << 20, 1 << 20),
    "negative": box(-1),
    "text for bounds": box(1, low="a"),
    "bounds past the dtype": box(1, dtype="int8", high=1 << 70),
    "nothing to choose from": dict(kind="Discrete", n=0, start=0, dtype="int64"),
}


@pytest.mark.parametrize("case", BAD_SPACES)
def test_a_greeting_with_an_impossible_space_is_unreadable(case):
    child = Greeter(BAD_SPACES[case])
    with pytest.raises(BackendProcessError, match="greeting is unreadable"):
        _connect("simulator", None, child)
    assert child.closed


def test_the_server_answers_with_a_result_or_with_the_exception():
    env = build("tests.fixtures.misbehaving:walk", NUM_ENVS, "{}")
    request = {"call": "reset", "arguments": [resets(0)]}
    pieces = encode_answer(lambda: answer(env, "simulator", request))
    reply = read_frame(io.BytesIO(b"".join(bytes(p) for p in pieces)).read)
    assert_same(reply["result"], walk(NUM_ENVS).reset(resets(0)))
    request = {"call": "reset", "arguments": [None]}
    pieces = encode_answer(lambda: answer(env, "simulator", request))
    reply = read_frame(io.BytesIO(b"".join(bytes(p) for p in pieces)).read)
    assert reply["error"]["kinds"][:2] == ["ValueError", "Exception"]
    assert "noise must be a ResetNoise" in reply["error"]["message"]
