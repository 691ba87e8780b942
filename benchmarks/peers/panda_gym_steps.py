"""Env steps per second of panda-gym's pick-and-place environment."""

from importlib.metadata import version

from stepping import Stepper, arguments, gymnasium_stepper, report, time_processes

ENV_ID = "PandaPickAndPlace-v3"


def make() -> Stepper:
    import gymnasium
    import panda_gym  # noqa: F401  (registers the env)

    env = gymnasium.make(ENV_ID, disable_env_checker=True)
    sim = env.unwrapped.sim
    return gymnasium_stepper(env, control_hz=round(1 / sim.dt), substeps=sim.n_substeps)


def main() -> None:
    args = arguments(__doc__).parse_args()
    rate, facts = time_processes(make, seconds=args.seconds, processes=args.processes)
    report(
        "panda-gym",
        env_id=ENV_ID,
        version=f"{version('panda-gym')} (pybullet {version('pybullet')})",
        rate=rate,
        facts=facts,
        notes=f"{args.processes} processes, end-effector control, sparse reward, nothing rendered",
    )


if __name__ == "__main__":
    main()
