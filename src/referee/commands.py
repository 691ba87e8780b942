"""What each verb of the `referee` command does: it hands its arguments to whoever does the work."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")

TINY_SIZES = {"tiny": {}, "small": {"hidden": 192, "layers": 4, "heads": 4, "vision_hidden": 128, "vision_depth": 2}}
"""Of `vlm tiny-init`: 0.44 and 3.3 million parameters."""


def run(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from referee.config import first_time
    from referee.recipes import run

    loaded = _load(arguments)
    for notice in [*first_time(loaded), *loaded.notices]:
        print(f"note: {notice}", file=sys.stderr)
    result = run(loaded)
    if result is not None:
        from referee.printing import show  # brings torch

        show(result, Console())


def config_show(arguments: argparse.Namespace) -> None:
    from referee.config import show

    print(show(_load(arguments), everything=arguments.all))


def config_explain(arguments: argparse.Namespace) -> None:
    from referee.config import explain

    print(explain(_load(arguments)), end="")


def config_list(arguments: argparse.Namespace) -> None:
    from referee.config import list_presets

    print(list_presets())


def cluster_check(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from referee.recipes.places import check_places
    from referee.runtime.check import check

    config = _load(arguments).config
    check(config.cluster, Console(), suits=lambda plan: check_places(plan, config))


def vlm_tiny(arguments: argparse.Namespace) -> None:
    from referee.models.vlm.tiny import TinyOptions, tiny_init

    count = tiny_init(arguments.folder, TinyOptions(**TINY_SIZES[arguments.size], seed=arguments.seed))
    print(f"wrote {arguments.folder}: a random Qwen3-VL with {count:,} parameters")


def score_text(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from referee.printing import show
    from referee.recipes.text import score_text

    show(score_text(arguments.file, rule=arguments.rule, out=arguments.out), Console())


def robot_check(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from referee.recipes.robot_check import robot_check

    return robot_check(_load(arguments).config, Console())


def doctor(arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.markup import escape

    from referee.doctor import findings

    console, failed = Console(), False
    if arguments.install_swiftshader:
        from referee.envs.maniskill import vulkan

        console.print(f"SwiftShader is in {vulkan.install()}", highlight=False, soft_wrap=True)
    for finding in findings():
        mark, colour = {"ok": ("✓", "green"), "note": ("·", "yellow"), "fail": ("✗", "red")}[finding.state]
        console.print(
            f"[{colour}]{mark}[/] {finding.what:<16} {escape(finding.detail)}", highlight=False, soft_wrap=True
        )
        if finding.fix:
            console.print(f"  {'':<16} → {finding.fix}", style="dim", highlight=False, markup=False, soft_wrap=True)
        failed |= finding.state == "fail"
    return 2 if failed else 0


def envs(arguments: argparse.Namespace) -> None:
    from referee.config.schema import PandaEnvConfig
    from referee.recipes.sheet import task_sheet

    task_sheet(arguments.out, PandaEnvConfig(image_size=arguments.size), seed=arguments.seed)
    print(f"wrote {arguments.out}")


def episodes_ls(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from referee.printing_data import show
    from referee.recipes import episodes

    show(episodes.ls(arguments.source, rows=arguments.rows), Console())


def episodes_check(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from referee.printing_data import show
    from referee.recipes.check_episodes import check

    result = check(arguments.source, adopt=arguments.adopt)
    show(result, Console())
    result.refuse()


def episodes_view(arguments: argparse.Namespace) -> None:
    from referee.recipes.view import view

    count = view(arguments.source, arguments.out, ids=arguments.ids, episodes=arguments.episodes)
    print(f"wrote {arguments.out}: {count} episodes")


def episodes_merge(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from referee.printing_data import show
    from referee.recipes import episodes

    console = Console()
    show(episodes.merge(arguments.sources, arguments.out, console), console)


def episodes_convert(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from referee.datasets.convert import ConvertOptions, convert
    from referee.printing_data import show

    console, options = Console(), _settings(ConvertOptions, arguments)
    show(convert(arguments.source, arguments.out, console, options), console)


def dataset_frames(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from referee.config.datasets import FrameConfig
    from referee.printing import show
    from referee.recipes import datasets

    cameras, config = tuple(arguments.cameras), _settings(FrameConfig, arguments)
    show(datasets.frames(arguments.raw_data_path, arguments.output_dir, config, cameras), Console())


def dataset_windows(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from referee.config.datasets import WindowConfig
    from referee.printing import show
    from referee.recipes import datasets

    config = _settings(WindowConfig, arguments)
    show(datasets.windows(arguments.raw_data_path, arguments.output_dir, config), Console())


def _settings(cls: type[T], arguments: argparse.Namespace, **defaults: Any) -> T:
    """Settings from flags that have no default of their own. defaults: of this command, where they differ."""
    names = {each.name for each in fields(cls)}  # type: ignore[arg-type]
    return cls(**{**defaults, **{name: value for name, value in vars(arguments).items() if name in names}})


def train(arguments: argparse.Namespace) -> None:
    import json

    given = [f"data.data_path={json.dumps(str(arguments.data))}"]
    if arguments.out is not None:
        given.append(f"runner.logger.log_path={json.dumps(str(arguments.out))}")
    for override in arguments.overrides:
        if override.startswith("ensemble="):
            given.append("actor.model.model_type=ensemble")
            override = override.replace("ensemble", "actor.model.members", 1)
        given.append(override)
    arguments.preset, arguments.overrides = "reward_training", given
    arguments.config_path = arguments.config_name = None
    run(arguments)


def audit(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from referee.config.imports import import_modules
    from referee.models.vlm.qwen import is_vlm
    from referee.printing import show
    from referee.recipes.audit import audit
    from referee.recipes.audit_vlm import audit_vlm

    import_modules(arguments.imports, key="--import")
    skip, allow = arguments.skip_training_episodes, arguments.allow_training_episodes
    console, recipe = Console(), audit_vlm if is_vlm(arguments.artifact) else audit
    with console.status(f"judging {arguments.data}"):
        result = recipe(
            arguments.artifact,
            arguments.data,
            out=arguments.out,
            training_episodes="skip" if skip else "allow" if allow else "refuse",
        )
    show(result, console)


def compare(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from referee.recipes.audit import compare

    console = Console()
    with console.status(f"judging {arguments.data}"):
        comparison = compare(arguments.a, arguments.b, arguments.data)
    console.print(str(comparison), highlight=False, markup=False, soft_wrap=True)


def score(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from referee.printing import show
    from referee.recipes.score import score

    show(score(arguments.artifact, arguments.what, gif=arguments.gif), Console())


def refine_run(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from referee.printing import show
    from referee.recipes import refine
    from referee.refine.loop import RefineOptions

    console = Console()
    result = refine.refine(
        arguments.artifact,
        arguments.episodes,
        arguments.out,
        console,
        labeller=arguments.labeller,
        options=_settings(RefineOptions, arguments, budget=refine.BUDGET),
        data=arguments.data,
        mode=arguments.mode,
    )
    show(result, console)


def refine_log(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from referee.printing import show
    from referee.recipes.refine_log import log

    show(log(arguments.run, sheets=arguments.sheets), Console())


def serve(arguments: argparse.Namespace) -> None:
    from referee.serving import serve

    serve(
        arguments.artifact,
        host=arguments.host,
        port=arguments.port,
        token_file=arguments.token_file,
        backend=arguments.backend,
        int8=arguments.int8,
    )


def evaluate(arguments: argparse.Namespace) -> None:
    from referee.recipes.trained import judge

    outcomes = judge(arguments.checkpoint, arguments.episodes, seed=arguments.seed, stochastic=arguments.stochastic)
    print(f"success at the end   {outcomes.rate()}")
    print(f"success at any time  {outcomes.rate(once=True)}")


def demo(arguments: argparse.Namespace) -> None:
    import json

    from referee.demo.recipe import SHORT, clear

    given = [f"env.eval.task={SHORT[arguments.task]}", f"runner.logger.log_path={json.dumps(str(arguments.out))}"]
    arguments.preset, arguments.overrides = "demo", [*given, *arguments.overrides]
    arguments.config_path = arguments.config_name = None
    _load(arguments)  # what is mistyped is refused before anything is removed
    clear(arguments.out)
    run(arguments)


def play(arguments: argparse.Namespace) -> None:
    from referee.recipes.play import play

    rate = play(
        arguments.task,
        arguments.policy,
        out=arguments.out,
        episodes=arguments.episodes,
        noise=arguments.noise,
        seed=arguments.seed,
        pixels=arguments.size,
        trained=arguments.checkpoint,
    )
    who = arguments.checkpoint or f"{arguments.task}, {arguments.policy}"
    print(f"wrote {arguments.out}: {who}, success {rate.successes} of {rate.trials}")


def _load(arguments: argparse.Namespace):  # type: ignore[no-untyped-def]
    from referee.config import load

    preset, overrides = arguments.preset, arguments.overrides
    if arguments.config_name and "=" in preset:  # the name came as an option, so all words are settings
        preset, overrides = "", [preset, *overrides]
    return load(
        preset,
        overrides,
        config_path=arguments.config_path,
        config_name=arguments.config_name,
    )
