"""The `referee` command: arguments in, exit codes out, no logic."""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from referee import __version__, commands
from referee.cli_help import Parser, add_examples
from referee.errors import RefereeError, one_line, shortage

UNREAD = 141
"""The exit code of programs that end because nobody reads on."""
FORMATS = ("native", "pickle", "pickle_frames", "npy", "lerobot")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. Expected errors are one line on stderr and exit code 2."""
    parser = _parser()
    if not (sys.argv[1:] if argv is None else argv):
        parser.print_help(sys.stderr)
        return 2
    arguments, rest = parser.parse_known_args(argv)
    if any(word.startswith("-") for word in rest) or (rest and not hasattr(arguments, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # overrides that stand behind an option
        arguments.overrides = [*arguments.overrides, *rest]
    try:
        code = int(arguments.verb(arguments) or 0)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _unread():
            raise  # another pipe: somebody who worked for us is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except RefereeError as error:
        print(f"referee: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("referee: stopped", file=sys.stderr)
        return 130
    except Exception as error:
        line = shortage(error)
        if line is None:
            raise
        print(f"referee: {line}", file=sys.stderr)
        return 2


def _unread() -> bool:
    """Whether whoever read what we print has left, as in `referee config show PRESET | head`."""
    try:
        looked = select.poll()
        looked.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in looked.poll(0))
    except (OSError, ValueError):  # not a file at all
        return False


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="referee", description="Reward models for robot reinforcement learning.")
    parser.add_argument("--version", action="version", version=f"referee {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    run = verbs.add_parser("run", help="start a preset: referee run PRESET [key=value …]")
    _preset_arguments(run)
    run.set_defaults(verb=commands.run)

    _episodes_arguments(verbs.add_parser("episodes", help="look at recorded episodes, check, merge, convert them"))

    _dataset_arguments(verbs.add_parser("dataset", help="from episodes to what a reward model learns from"))

    _reward_arguments(verbs)

    judge = verbs.add_parser("eval", help="how often a trained policy succeeds")
    judge.add_argument("checkpoint", type=Path, help="a run directory, or one of its checkpoints")
    judge.add_argument("--episodes", type=int, default=256)
    judge.add_argument("--seed", type=int, default=1_000_000, help="of the episodes (default: those of training runs)")
    judge.add_argument("--stochastic", action="store_true", help="with exploration noise")
    judge.set_defaults(verb=commands.evaluate)

    play = verbs.add_parser("play", help="film a policy")
    play.add_argument("checkpoint", type=Path, nargs="?", help="a trained policy: a run, or one of its checkpoints")
    play.add_argument(
        "--task", default="PickCube", help="Reach, PushCube, PickCube, PegInsertion, or an id of ManiSkill or Gymnasium"
    )
    play.add_argument("--policy", default="expert", help="expert, random or module:function (default expert)")
    play.add_argument("--noise", type=float, default=0.0, help="noise of the expert (default 0)")
    play.add_argument("--episodes", type=int, default=2)
    play.add_argument("--seed", type=int, default=0)
    play.add_argument("--size", type=int, default=360, help="pixels of a frame (default 360)")
    play.add_argument("--out", type=Path, default=Path("film.gif"), help="the GIF to write (default film.gif)")
    play.set_defaults(verb=commands.play)

    demo = verbs.add_parser("demo", help="the whole story: a reward model is trained, fooled, caught and repaired")
    demo.add_argument("overrides", nargs="*", help="key=value, as `referee config show demo` lists them")
    demo.add_argument("--task", default="pick", choices=("pick", "push", "peg"), help="(default pick)")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="where everything goes (default demo)")
    demo.set_defaults(verb=commands.demo)

    envs = verbs.add_parser("envs", help="write a contact sheet of all tasks")
    envs.add_argument("--out", type=Path, default=Path("tasks.png"), help="the PNG to write (default tasks.png)")
    envs.add_argument("--size", type=int, default=64, choices=(64, 128, 224), help="image size (default 64)")
    envs.add_argument("--seed", type=int, default=0)
    envs.set_defaults(verb=commands.envs)

    config = verbs.add_parser("config", help="look at configurations")
    config_verbs = config.add_subparsers(required=True, metavar="show|explain|list")
    show = config_verbs.add_parser("show", help="the resolved tree of a preset, with where each value came from")
    _preset_arguments(show)
    show.add_argument("--all", action="store_true", help="also keys that do nothing in this setting")
    show.set_defaults(verb=commands.config_show)
    explain = config_verbs.add_parser("explain", help="keys as RLinf's guides write them: what each is here, and does")
    _preset_arguments(explain)
    explain.set_defaults(verb=commands.config_explain)
    config_verbs.add_parser("list", help="all presets").set_defaults(verb=commands.config_list)

    doctor = verbs.add_parser("doctor", help="check this machine")
    doctor.add_argument(
        "--install-swiftshader", action="store_true", help="get software Vulkan first, so that ManiSkill can draw"
    )
    doctor.set_defaults(verb=commands.doctor)

    robot = verbs.add_parser("robot", help="a real arm and its devices")
    robot_verbs = robot.add_subparsers(required=True, metavar="check")
    tested = robot_verbs.add_parser("check", help="test arm, cameras and SpaceMouse of a preset; nothing moves")
    _preset_arguments(tested)
    tested.set_defaults(verb=commands.robot_check)

    cluster = verbs.add_parser("cluster", help="where workers run")
    cluster_verbs = cluster.add_subparsers(required=True, metavar="check")
    placed = cluster_verbs.add_parser("check", help="the planned placement, and whether the cluster can hold it")
    _preset_arguments(placed)
    placed.set_defaults(verb=commands.cluster_check)

    vlm = verbs.add_parser("vlm", help="vision-language models").add_subparsers(required=True, metavar="tiny-init")
    tiny = vlm.add_parser("tiny-init", help="a small random Qwen3-VL, to try the whole pipeline without a download")
    tiny.add_argument("folder", type=Path, help="a new folder")
    tiny.add_argument(
        "--size", default="tiny", choices=tuple(commands.TINY_SIZES), help="0.44 or 3.3 million parameters (tiny)"
    )
    tiny.add_argument("--seed", type=int, default=0)
    tiny.set_defaults(verb=commands.vlm_tiny)

    text = verbs.add_parser("score-text", help="what a rule says about text answers")
    text.add_argument("file", type=Path, help='.jsonl, each line {"answer": …, "reference": …}')
    text.add_argument("--rule", default="exact", help="exact, numeric, regex or math (default exact)")
    text.add_argument("--out", type=Path, help="write each line there with success and reward")
    text.set_defaults(verb=commands.score_text)

    add_examples(parser)
    return parser


def _episodes_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="ls|check|view|merge|convert")

    ls = verbs.add_parser("ls", help="counts, success rate, size")
    ls.add_argument("source", type=Path, help="an episode store, or files of another format")
    ls.add_argument("--rows", type=int, default=10, help="how many of the newest to list (default 10)")
    ls.set_defaults(verb=commands.episodes_ls)

    check = verbs.add_parser("check", help="read every byte of a store; bring back what a killed run left")
    check.add_argument("source", type=Path, help="an episode store")
    check.add_argument("--adopt", action="store_true", help="also journals whose run cannot be seen to have ended")
    check.set_defaults(verb=commands.episodes_check)

    view = verbs.add_parser("view", help="a film strip, a film or a Rerun recording")
    view.add_argument("source", type=Path, help="an episode store, or files of another format")
    view.add_argument("ids", nargs="*", help="episodes of a store (default: some, spread over all)")
    view.add_argument("--episodes", type=int, default=4, help="how many, where no ids are given (default 4)")
    view.add_argument(
        "--out", type=Path, default=Path("episodes.png"), help="a .png, .gif, .mp4 or .rrd (episodes.png)"
    )
    view.set_defaults(verb=commands.episodes_view)

    merge = verbs.add_parser("merge", help="several stores into one")
    merge.add_argument("sources", type=Path, nargs="+", help="episode stores")
    merge.add_argument("--out", type=Path, required=True, help="the store to fill")
    merge.set_defaults(verb=commands.episodes_merge)

    convert = verbs.add_parser("convert", help="from one format to another")
    convert.add_argument("source", type=Path, help="a store, .npy, .pkl, LeRobot, image folders, .mp4, .gif or .hdf5")
    convert.add_argument("out", type=Path, help="a new folder")
    convert.add_argument(
        "--format", dest="export_format", default=argparse.SUPPRESS, choices=FORMATS, help="(default native)"
    )
    convert.add_argument(
        "--labels", type=Path, help=".csv or .jsonl: episode,frame,success or episode,start,stop,success"
    )
    convert.add_argument("--success-from", metavar="RULE", help="label by rewards: reward (above 0), or 'reward>=0.9'")
    convert.add_argument(
        "--success-at", choices=("same", "next"),
        help="which frame a reward or LeRobot's next.success labels: that of its row, or the one after (default: "
        "next.success same, rewards next)",
    )  # fmt: skip
    convert.add_argument("--task", default="", help="the task in words, for episodes that do not say it")
    convert.set_defaults(verb=commands.episodes_convert)


def _dataset_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="frames|windows")
    unset = argparse.SUPPRESS  # settings have their defaults in config/datasets.py
    frames = verbs.add_parser(
        "frames", help="single frames, success or not: train.pt and val.pt", argument_default=unset
    )
    windows = verbs.add_parser(
        "windows", help="short windows with the trend in them, for vision-language models", argument_default=unset
    )
    for each in (frames, windows):
        each.add_argument("--raw-data-path", type=Path, required=True, help="an episode store, or another format")
        each.add_argument("--output-dir", type=Path, required=True)
        each.add_argument("--val-split", type=float, help="share of the episodes (default 0.2; frames: 0 = none)")
        each.add_argument("--num-samples-per-episode", type=int, help="evenly spaced; 0 = all (default)")
        each.add_argument("--seed", type=int, dest="split_seed", metavar="SEED", help="of the split (default 42)")
    frames.add_argument("--fail-success-ratio", type=float, help="failures per success; 0 = keep all (default)")
    frames.add_argument("--cameras", nargs="+", default=["main_images"], help="names of views (default main_images)")
    frames.set_defaults(verb=commands.dataset_frames)
    windows.add_argument("--window-size", type=int, help="frames of a window (default 5)")
    windows.add_argument("--keep-frames", type=int, help="frames written of each window; 0 = all (default)")
    windows.add_argument("--stride", type=int, help="frames from one window to the next (default 1)")
    windows.add_argument("--delta-threshold", type=float, help="a smaller change of progress is unclear (default 0.05)")
    windows.add_argument("--tail", choices=("drop", "shift", "short"), help="frames left over (default drop)")
    windows.add_argument(
        "--no-balance", dest="balance", action="store_false", help="keep all windows of the commoner labels"
    )
    windows.add_argument("--reverse-positives", action="store_true", help="add positives played backwards as negatives")
    windows.add_argument("--task", help="the task in words, for episodes that do not say it")
    windows.set_defaults(verb=commands.dataset_windows)


def _reward_arguments(verbs: Any) -> None:
    train = verbs.add_parser("train", help="train a reward model on episodes or on files of frames")
    train.add_argument("data", type=Path, help="an episode store, any format of episodes, or a folder with train.pt")
    train.add_argument("overrides", nargs="*", help="key=value, as `referee config show reward_training` lists them")
    train.add_argument("--out", type=Path, help="the run (default logs/<timestamp>-reward_training)")
    train.set_defaults(verb=commands.train)

    audit = verbs.add_parser("audit", help="how far a reward model can be trusted: numbers and a report card")
    audit.add_argument("artifact", type=Path, help="the directory of a trained model")
    audit.add_argument("data", type=Path, help="episodes that it was not trained on")
    audit.add_argument("--out", type=Path, help="where report.html and metrics.json go (default ARTIFACT/report)")
    audit.add_argument(
        "--import", action="append", default=[], metavar="MODULE", dest="imports",
        help="import a module of yours first, as one that registers an input builder",
    )  # fmt: skip
    seen = audit.add_mutually_exclusive_group()
    seen.add_argument("--skip-training-episodes", action="store_true", help="leave out those it was trained on")
    seen.add_argument(
        "--allow-training-episodes", action="store_true", help="keep them: then the numbers prove nothing"
    )
    audit.set_defaults(verb=commands.audit)

    compare = verbs.add_parser("compare", help="two reward models on the same episodes")
    compare.add_argument("a", type=Path, help="an artifact")
    compare.add_argument("b", type=Path, help="another one")
    compare.add_argument("data", type=Path, help="episodes that neither was trained on")
    compare.set_defaults(verb=commands.compare)

    score = verbs.add_parser("score", help="what a reward model says about pictures or episodes")
    score.add_argument("artifact", type=Path, help="the directory of a trained model, or its weights")
    score.add_argument("what", type=Path, nargs="+", help="pictures, a folder of them, or episodes")
    score.add_argument("--gif", type=Path, help="also write the frames with the verdict on them")
    score.set_defaults(verb=commands.score)

    serve = verbs.add_parser("serve", help="score pictures over HTTP, for other processes")
    serve.add_argument("artifact", type=Path, help="the directory of a trained model")
    serve.add_argument("--port", type=int, default=8642, help="0 = a free one (default 8642)")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: only from here)")
    serve.add_argument(
        "--token-file", type=Path, help="where the token is, or is written (default: a new one, printed)"
    )
    serve.add_argument("--backend", choices=("torch", "compile", "onnxruntime", "openvino"), help="what computes")
    serve.add_argument("--int8", action="store_true", help="with onnxruntime or openvino")
    serve.set_defaults(verb=commands.serve)

    refine = verbs.add_parser("refine", help="repair a reward model by asking about what it judges")
    refine_verbs = refine.add_subparsers(required=True, metavar="run|log")
    again = refine_verbs.add_parser("run", help="on recorded episodes of the policy")
    again.add_argument("artifact", type=Path, help="the directory of a trained model")
    again.add_argument("episodes", type=Path, help="an episode store")
    again.add_argument(
        "--out", type=Path, required=True, help="questions, answers, better models; gone on with if there"
    )
    again.add_argument("--labeller", default="terminal", choices=("terminal", "log", "truth"), help="(terminal)")
    unset = argparse.SUPPRESS
    again.add_argument("--budget", type=int, default=unset, help="frames to ask about (default 96)")
    again.add_argument("--ask", type=int, default=unset, help="of them, in one round (default 24)")
    again.add_argument("--steps", type=int, default=unset, help="of each retraining (default 80)")
    again.add_argument(
        "--mode", default="per_step", choices=("per_step", "terminal"),
        help="what the model will judge, as reward.reward_mode; terminal: last states only (default per_step)",
    )  # fmt: skip
    again.add_argument("--data", type=Path, help="the model's own train.pt and val.pt (default: as it names them)")
    again.set_defaults(verb=commands.refine_run)
    explain = refine_verbs.add_parser("log", help="what a run asked, heard and learned")
    explain.add_argument("run", type=Path, help="a run with reward.refine.enabled, or the --out of refine run")
    explain.add_argument("--sheets", type=Path, help="draw the frames that were asked about there")
    explain.set_defaults(verb=commands.refine_log)


def _preset_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", nargs="?", default="", help="name of a preset, or a YAML file of yours")
    parser.add_argument("overrides", nargs="*", help="key=value, as in Hydra")
    parser.add_argument("--config-path", help="a folder with configurations of yours")
    parser.add_argument("--config-name", help="the configuration in it")


if __name__ == "__main__":
    sys.exit(main())
