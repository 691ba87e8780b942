"""Env steps per second of robosuite's Lift task with a Panda."""

from importlib.metadata import version

import numpy as np
from stepping import Stepper, arguments, report, time_processes

ENV_ID = "Lift"


def make() -> Stepper:
    import robosuite

    env = robosuite.make(
        ENV_ID,
        robots="Panda",
        has_renderer=False,
        has_offscreen_renderer=False,
        use_camera_obs=False,
        hard_reset=False,  # the default compiles the model again at every reset, which is slower
    )
    low, high = env.action_spec
    facts = {
        "control_hz": round(env.control_freq),
        "substeps": round(env.control_timestep / env.model_timestep),
    }

    def step(action: np.ndarray) -> bool:
        _, _, done, _ = env.step(action)
        return bool(done)

    return Stepper(env.reset, step, low, high, facts)


def main() -> None:
    args = arguments(__doc__).parse_args()
    rate, facts = time_processes(make, seconds=args.seconds, processes=args.processes)
    report(
        "robosuite",
        env_id=f"{ENV_ID}, Panda",
        version=f"{version('robosuite')} (mujoco {version('mujoco')})",
        rate=rate,
        facts=facts,
        notes=f"{args.processes} processes, default controller (OSC pose), no cameras, hard_reset=False",
    )


if __name__ == "__main__":
    main()
