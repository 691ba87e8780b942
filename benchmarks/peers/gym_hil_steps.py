"""Env steps per second of gym-hil's Panda pick-cube environment, with or without its camera images."""

import functools
import os
from importlib.metadata import version

from stepping import Stepper, arguments, gymnasium_stepper, report, time_processes

# gym-hil opens a renderer even in state mode, so it always needs a GL back end.
os.environ.setdefault("MUJOCO_GL", "egl")

ENV_ID = "gym_hil/PandaPickCube-v0"


def make(images: bool) -> Stepper:
    import gym_hil  # noqa: F401  (registers the env)
    import gymnasium

    # Its wrapper sleeps one second at every reset unless told otherwise: that would not be a fair clock.
    env = gymnasium.make(ENV_ID, disable_env_checker=True, image_obs=images, reset_delay_seconds=0.0)
    if images:
        observation, _ = env.reset()
        if any(frame.std() == 0 for frame in observation["pixels"].values()):
            raise RuntimeError("gym-hil rendered an empty frame; set MUJOCO_GL to a back end that works")
    sim = env.unwrapped
    substeps = round(sim.control_dt / sim.physics_dt)
    return gymnasium_stepper(env, control_hz=round(1 / sim.control_dt), substeps=substeps)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--images", action="store_true", help="its two 128 px cameras in every observation")
    args = parser.parse_args()
    rate, facts = time_processes(functools.partial(make, args.images), seconds=args.seconds, processes=args.processes)
    what = f"front and wrist 128 px, {os.environ['MUJOCO_GL']}" if args.images else "image_obs=False"
    report(
        "gym-hil, images" if args.images else "gym-hil",
        env_id=ENV_ID,
        version=f"{version('gym-hil')} (mujoco {version('mujoco')})",
        rate=rate,
        facts=facts,
        notes=f"{args.processes} processes, {what}, reset_delay_seconds=0",
    )


if __name__ == "__main__":
    main()
