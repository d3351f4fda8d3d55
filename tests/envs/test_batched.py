"""The lifecycle that BatchedEnv gives every backend: validation, ownership of arrays, closing."""

import numpy as np
import pytest
from gymnasium import spaces

from envs.batched import BatchedEnv
from envs.core import ActionError, Decision, EnvSpec, Field, LifecycleError, NoiseSite, Outcome

SPEC = EnvSpec(
    name="counter",
    version="1",
    observation_space=spaces.Dict(
        {"count": spaces.Box(0, 255, (1,), np.float32), "double": spaces.Discrete(512)}
    ),
    action_space=spaces.Discrete(3),
    has_legal_actions=True,
    reset_noise={"seed": NoiseSite("bits")},
    state={"count": Field((), "int32")},
)


class Counter(BatchedEnv):
    """Adds up actions in place; 2 is legal for even counts only; keeps a log of its calls."""

    def __init__(self, num_envs=2, **options):
        super().__init__(SPEC, num_envs, **options)
        self.count = np.zeros((num_envs, 1), np.float32)
        self.legal = np.ones((num_envs, 3), bool)
        self.reward = np.zeros(num_envs, np.float32)
        self.log = []

    def _decision_now(self):
        self.legal[:, 2] = self.count[:, 0] % 2 == 0
        observation = {"count": self.count, "double": (2 * self.count[:, 0]).astype(np.int64)}
        return Decision(observation, np.ones(self.num_envs, bool), self.legal)

    def _reset(self, seed):
        self.log.append(("reset", seed))
        self.count[:] = seed
        return self._decision_now()

    def _step(self, actions):
        self.log.append(("step", actions.dtype.name, actions.tolist()))
        self.count[:, 0] += actions
        self.reward[:] = actions
        no = np.zeros(self.num_envs, bool)
        decision = self._decision_now()
        metrics = {"total": self.count[:, 0]}
        return decision, Outcome(self.reward, no, no, metrics, no, final=decision)

    def _close(self):
        self.log.append(("close",))


def arrays(decision, outcome=None):
    """All arrays handed out, by name."""
    found = {f"observation {k}": v for k, v in decision.observation.items()}
    found |= {"acting": decision.acting, "legal": decision.legal_actions}
    if outcome is not None:
        found |= {f"final {k}": v for k, v in outcome.final.observation.items()}
        found |= {"reward": outcome.reward, "metric": outcome.metrics["total"]}
        found |= {"terminated": outcome.terminated, "invalid": outcome.invalid}
    return found


# --- order of calls -----------------------------------------------------------------------------


def test_step_before_reset_is_refused():
    env = Counter()
    with pytest.raises(
        LifecycleError, match=r"counter: step before reset; call reset\(seed\) first"
    ):
        env.step([0, 0])
    assert env.log == []


def test_reset_starts_again_at_any_time():
    env = Counter()
    env.reset(4)
    env.step([1, 1])
    assert env.reset(7).observation["count"].tolist() == [[7], [7]]
    assert env.log == [("reset", 4), ("step", "int32", [1, 1]), ("reset", 7)]


@pytest.mark.parametrize(
    "use", [lambda e: e.reset(0), lambda e: e.step([0, 0]), lambda e: e.__enter__().reset(0)]
)
def test_any_use_after_close_is_refused(use):
    env = Counter()
    env.reset(0)
    env.close()
    with pytest.raises(LifecycleError, match="counter: used after close"):
        use(env)


def test_close_releases_once_however_often_it_is_called():
    env = Counter()
    env.close()
    env.close()
    assert env.log == [("close",)]


def test_leaving_the_context_closes_even_after_an_error():
    with pytest.raises(ZeroDivisionError), Counter() as env:
        raise ZeroDivisionError
    assert env.log == [("close",)]


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [-1, 2**32, 1.0, "1", None, float("nan"), [0]])
def test_bad_seeds_are_refused_and_change_nothing(seed):
    env = Counter()
    with pytest.raises(ValueError, match=r"seed must be an integer in \[0, 2\*\*32\), got"):
        env.reset(seed)
    assert env.log == []


@pytest.mark.parametrize("seed", [0, 2**32 - 1, np.uint32(5), np.int64(6)])
def test_seeds_arrive_as_ints(seed):
    env = Counter()
    env.reset(seed)
    assert env.log == [("reset", int(seed))]
    assert type(env.log[0][1]) is int


@pytest.mark.parametrize("num_envs", [0, -2, 1.0, "2"])
def test_bad_num_envs_is_refused(num_envs):
    with pytest.raises(ValueError, match="num_envs must be a positive integer"):
        Counter(num_envs)


@pytest.mark.parametrize("actions", [[0], [0, 3], [0.0, 1.0], [[0], [1]], [0, 2]])
def test_nothing_is_stepped_with_bad_actions(actions):
    env = Counter()
    env.reset(1)  # odd: action 2 is not legal
    with pytest.raises(ActionError):
        env.step(actions)
    assert env.log == [("reset", 1)]
    decision, _ = env.step([1, 0])  # and it can go on
    assert decision.observation["count"].tolist() == [[2], [1]]


def test_legality_is_that_of_the_open_decision():
    env = Counter()
    env.reset(1)
    env.step([1, 0])  # row 0 is even by now, row 1 still odd
    with pytest.raises(ActionError, match=r"action 2 of row 1 is not legal; legal there: \[0, 1\]"):
        env.step([0, 2])
    env.step([2, 1])


# --- ownership of arrays ------------------------------------------------------------------------


def test_copies_are_the_callers_own():
    env = Counter()
    first = arrays(env.reset(1))
    kept = {name: array.copy() for name, array in first.items()}
    second = arrays(*env.step([1, 1]))
    for name, array in first.items():
        np.testing.assert_array_equal(array, kept[name], err_msg=name)
    for array in (first | second).values():
        assert array.flags.writeable
        array[...] = 0
    assert arrays(env.step([0, 0])[0])["observation count"].tolist() == [[2], [2]]


def test_changed_copies_do_not_reach_the_legality_check():
    env = Counter()
    env.reset(1).legal_actions[:] = True
    with pytest.raises(ActionError, match="not legal"):
        env.step([2, 2])


def test_views_show_the_buffers_and_can_not_be_written():
    env = Counter(copy=False)
    first = arrays(env.reset(1))
    second = arrays(*env.step([1, 1]))
    assert np.shares_memory(first["observation count"], env.count)
    assert first["observation count"].tolist() == [[2], [2]]  # valid until the next call only
    for name, array in (first | second).items():
        assert not array.flags.writeable, name
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert env.count.flags.writeable  # the environment's own buffer stays its own


@pytest.mark.parametrize("copy", [True, False])
def test_records_keep_their_types_and_absent_parts(copy):
    decision, outcome = (env := Counter(copy=copy)).reset(0), env.step([0, 1])[1]
    assert isinstance(decision, Decision)
    assert isinstance(outcome, Outcome)
    assert isinstance(outcome.final, Decision)
    assert decision.privileged is None
    assert outcome.events is None
    assert list(decision.observation) == ["count", "double"]
