"""Env steps per second of EnvPool's C++ port of the MuJoCo Playground Panda cube tasks."""

from importlib.metadata import version

import envpool
from stepping import WARMUP_SECONDS, arguments, random_actions, report, steps_until


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--env-id", default="PandaPickCube-v1", help="or PandaPickCubeCartesian-v1")
    parser.add_argument("--num-envs", type=int, default=64)
    args = parser.parse_args()  # here --processes is the number of threads of the one pool

    config = envpool.make_spec(args.env_id).config
    env = envpool.make_gymnasium(args.env_id, num_envs=args.num_envs, num_threads=args.processes)
    box = env.action_space
    actions = random_actions(box.low, box.high, batch=(args.num_envs,), seed=0)
    env.reset()
    steps_until(WARMUP_SECONDS, env.step, actions)
    rate = args.num_envs * steps_until(args.seconds, env.step, actions)
    report(
        "EnvPool",
        env_id=args.env_id,
        version=version("envpool"),
        rate=rate,
        facts={"control_hz": round(1 / config.ctrl_dt), "substeps": round(config.ctrl_dt / config.sim_dt)},
        notes=f"{args.num_envs} envs, {args.processes} threads, one process, next-step autoreset",
    )


if __name__ == "__main__":
    main()
