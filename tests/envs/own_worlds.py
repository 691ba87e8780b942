"""Small environments as other people write them: a goal, an info, a picture; nothing of Referee in them."""

from typing import Any

import gymnasium as gym
import numpy as np

SIZE = 48


class PointReach(gym.Env[dict[str, np.ndarray], np.ndarray]):
    """A point is moved to a goal. Only `step` tells success, as in gymnasium-robotics."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, radius: float = 0.15, cameras: bool = False) -> None:
        self.render_mode, self.radius, self.cameras = render_mode, radius, cameras
        box = gym.spaces.Box(-2, 2, (2,), np.float64)
        spaces: dict[str, gym.Space[Any]] = {"observation": gym.spaces.Box(-4, 4, (3,), np.float64)}
        spaces |= {"achieved_goal": box, "desired_goal": box}
        if cameras:
            spaces["top"] = gym.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
            spaces["wrist"] = gym.spaces.Box(0, 255, (3, SIZE, SIZE), np.uint8)
        self.observation_space = gym.spaces.Dict(spaces)
        self.action_space = gym.spaces.Box(np.array([-0.5, -0.5, 0], np.float32), np.array([0.5, 0.5, 4], np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.point, self.goal = self.np_random.uniform(-1, 1, 2), self.np_random.uniform(-1, 1, 2)
        self.third = 0.0
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.third = float(action[2])
        self.point = np.clip(self.point + 0.5 * action[:2].astype(np.float64), -1, 1)
        distance = float(np.linalg.norm(self.point - self.goal))
        return self._observation(), -distance, False, False, {"is_success": float(distance < self.radius)}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        return -np.linalg.norm(achieved_goal - desired_goal, axis=-1)

    def render(self) -> np.ndarray:
        image = np.full((SIZE, 2 * SIZE, 3), 230, np.uint8)
        for place, colour in ((self.goal, (40, 160, 60)), (self.point, (200, 40, 40))):
            x, y = ((place + 1.2) / 2.4 * SIZE).astype(int)
            image[max(0, y - 2) : y + 3, max(0, 2 * x - 4) : 2 * x + 5] = colour
        return image

    def _observation(self) -> dict[str, np.ndarray]:
        observation = {
            "observation": np.array([*self.point, self.third]),
            "achieved_goal": self.point.copy(), "desired_goal": self.goal.copy(),
        }  # fmt: skip
        if self.cameras:
            picture = self.render()[:, ::2]
            observation |= {"top": picture, "wrist": np.moveaxis(255 - picture, -1, 0).copy()}
        return observation


class PointPixels(PointReach):
    """One whose pictures lie in a dict within the observation, as in gym-hil and LeRobot's environments."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        picture = gym.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        point = gym.spaces.Box(-2, 2, (2,), np.float64)
        self.observation_space = gym.spaces.Dict(
            {"pixels": gym.spaces.Dict({"front": picture, "wrist": picture}), "agent_pos": point}
        )

    def _observation(self) -> dict[str, Any]:
        picture = self.render()[:, ::2]
        return {"pixels": {"front": picture, "wrist": 255 - picture}, "agent_pos": self.point.copy()}


class PointColours(PointReach):
    """One whose pictures have an alpha channel, or are grey; and, if asked for, four grey ones on top of each other."""

    def __init__(self, render_mode: str | None = None, stack: bool = False) -> None:
        super().__init__(render_mode)
        shapes = {"alpha": (SIZE, SIZE, 4), "grey": (SIZE, SIZE, 1)} | ({"stack": (4, SIZE, SIZE)} if stack else {})
        spaces = {name: gym.spaces.Box(0, 255, shape, np.uint8) for name, shape in shapes.items()}
        self.observation_space = gym.spaces.Dict({"point": gym.spaces.Box(-2, 2, (2,), np.float64), **spaces})

    def _observation(self) -> dict[str, Any]:
        picture = self.render()[:, ::2]
        grey = picture[..., 1]
        own = {
            "point": self.point.copy(), "alpha": np.dstack([picture, np.full_like(grey, 7)]), "grey": grey[..., None],
            "stack": np.stack([grey] * 4),
        }  # fmt: skip
        return {name: own[name] for name in self.observation_space.spaces}  # type: ignore[attr-defined]


class Undrawn(PointReach):
    """One whose drawing needs a package that is not installed, as Gymnasium's own ones do without pygame."""

    def render(self) -> np.ndarray:
        raise gym.error.DependencyNotInstalled("pygame is not installed")


def draw(env: gym.Env[Any, Any]) -> dict[str, np.ndarray]:
    """Two pictures of one's own: what render() shows, and its negative."""
    world: Any = env.unwrapped
    world.drawn = getattr(world, "drawn", 0) + 1
    picture = world.render()[:, ::2]
    return {"plain": picture, "negative": 255 - picture}


class Restless(PointReach):
    """One that forgets its seed: an episode is never repeated."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=None if self.__dict__.setdefault("begun", False) else seed, options=options)

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.begun = True
        return super().step(action)


class Silent(PointReach):
    """One whose info says nothing."""

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], {}


gym.register("PointSilent-v0", Silent, max_episode_steps=4)
gym.register("PointReach-v0", PointReach, max_episode_steps=20)
gym.register("PointCameras-v0", PointReach, max_episode_steps=20, kwargs={"cameras": True})
gym.register("PointColours-v0", PointColours, max_episode_steps=20)
gym.register("PointPixels-v0", PointPixels, max_episode_steps=20)
gym.register("Undrawn-v0", Undrawn, max_episode_steps=4)
gym.register("Restless-v0", Restless, max_episode_steps=5)
