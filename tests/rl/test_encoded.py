"""An environment seen through a frozen encoder: numbers of the same pictures, also at the ends of episodes."""

import numpy as np
import pytest
import torch

from referee.config import PandaEnvConfig
from referee.envs import make_vec
from referee.errors import RefereeError
from referee.models import Artifact, Calibration, ModelSpec, build
from referee.rl.encoded import EncodedEnv, Encoder, sightings


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    torch.manual_seed(0)
    net = build(ModelSpec(arch="resnet10", width=4, image_size=64, cameras=("side", "front"), hidden_dim=8)).eval()
    return Artifact(net, Calibration(), {}, None)


def make(mode: str = "state+rgb") -> PandaEnvConfig:
    return PandaEnvConfig(task="Reach", num_envs=3, obs_mode=mode, max_episode_steps=4, num_threads=1)


def test_states_are_what_is_felt_and_seen(artifact: Artifact) -> None:
    plain, encoded = make_vec(make()), EncodedEnv(make_vec(make()), artifact)
    before, _ = plain.reset(seed=3)
    after, _ = encoded.reset(seed=3)
    encoder = Encoder(artifact, plain.cameras)
    actions = np.full((3, 4), 0.3, np.float32)
    for step in range(6):
        wanted = np.concatenate([before["states"][:, : plain.proprio_size], encoder(before)], axis=1)
        np.testing.assert_allclose(after["states"], wanted, rtol=1e-5, atol=1e-5)
        assert set(after) == {"states"} and after["states"].shape == encoded.observation_space["states"].shape
        before, *_, ours = plain.step(actions)
        after, _, _, truncated, theirs = encoded.step(actions)
        if step == 3:
            assert truncated.all()
            for i in range(3):
                last = ours["final_obs"][i]
                seen = encoder({name: value[None] for name, value in last.items()})[0]
                wanted = np.concatenate([last["states"][: plain.proprio_size], seen])
                np.testing.assert_allclose(theirs["final_obs"][i]["states"], wanted, rtol=1e-5, atol=1e-5)


def test_a_channel_tells_where_it_sees_something() -> None:
    maps = torch.zeros(1, 3, 5, 9)
    maps[0, 0, 4, 2] = 50.0  # below, left of the middle
    maps[0, 1, :, 8] = 10.0  # all of the right edge
    found = sightings(maps)[0].reshape(3, 3)  # down, across, how much; each of three channels
    np.testing.assert_allclose(found[:, 0], [1.0, -0.5, 50 / 45], atol=0.06)
    assert abs(found[0, 1]) < 1e-6 and found[1, 1] > 0.5
    np.testing.assert_allclose(found[:, 2], 0.0, atol=1e-6)


def test_it_goes_on_from_a_saved_state(artifact: Artifact) -> None:
    env = EncodedEnv(make_vec(make()), artifact)
    env.reset(seed=1)
    saved, actions = env.save_state(), np.full((3, 4), -0.2, np.float32)
    first, *_ = env.step(actions)
    env.restore_state(saved)
    again, *_ = env.step(actions)
    assert np.array_equal(first["states"], again["states"])


def test_it_needs_images(artifact: Artifact) -> None:
    with pytest.raises(RefereeError, match="needs images"):
        EncodedEnv(make_vec(make("state")), artifact)
