"""Trains a binary classifier on positive and negative .npy trajectories: `python -m referee.train_reward_model -h`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from referee.errors import RefereeError, one_line, shortage

if TYPE_CHECKING:
    from referee.training.recipe import TrainOptions


def parser() -> argparse.ArgumentParser:
    """All arguments."""
    found = argparse.ArgumentParser(prog="python -m referee.train_reward_model", description=__doc__)
    add = found.add_argument
    add("--positive-dir", type=Path, required=True, help="trajectories with a success, as .npy")
    add("--negative-dir", type=Path, required=True, help="trajectories without")
    add("--output-checkpoint", type=Path, required=True, help="the .pt to write; its folder is made")
    add("--pretrained-encoder-path", type=Path, help="weights of the encoder; without, it learns before it is frozen")
    add("--backbone", default="resnet10", help="(default resnet10; resnet10_small is a sixteenth of it)")
    add("--image-key", default="base_camera", help="the camera to look at (default base_camera)")
    add("--image-size", type=int, nargs=3, default=(3, 64, 64), metavar=("C", "H", "W"), help="(default 3 64 64)")
    add("--batch-size", type=int, default=32, help="(default 32)")
    add("--epochs", type=int, default=100, help="(default 100)")
    add("--lr", type=float, default=1e-4, help="(default 1e-4)")
    add("--hidden-dim", type=int, default=256, help="of the head (default 256)")
    add("--num-spatial-blocks", type=int, default=8, help="learned weightings of the feature map (default 8)")
    add("--visualize-positive", action="store_true", help="write every success frame as a PNG before training")
    add("--vis-output-dir", type=Path, default=Path("positive_samples_vis"), help="(default positive_samples_vis)")
    more = found.add_argument_group("beyond the documented ones")
    more.add_argument("--val-split", type=float, default=0.2, help="share of the trajectories; 0 = none (default 0.2)")
    more.add_argument(
        "--best-metric", default="val_loss", help="val_loss (default), val_auroc, val_accuracy or train_accuracy"
    )
    more.add_argument("--train-encoder", action="store_true", help="train the encoder too, instead of freezing it")
    more.add_argument("--width", type=int, help="channels of the encoder's first layer (default: the backbone's own)")
    more.add_argument(
        "--target-episode-fpr", type=float, default=0.01, help="failing episodes that may be paid (default 0.01)"
    )
    more.add_argument("--seed", type=int, default=42)
    more.add_argument("--log-path", type=Path, help="the run: checkpoints and the artifact (default: beside the .pt)")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run it. Expected errors are one line on stderr and exit code 2."""
    arguments = parser().parse_args(argv)
    try:
        run(arguments, Console())
    except RefereeError as error:
        print(f"train_reward_model: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train_reward_model: stopped", file=sys.stderr)
        return 130
    except Exception as error:
        line = shortage(error)
        if line is None:
            raise
        print(f"train_reward_model: {line}", file=sys.stderr)
        return 2
    return 0


def job_of(arguments: argparse.Namespace) -> TrainOptions:
    """The training that the arguments describe."""
    from referee.config.datasets import DataConfig
    from referee.config.reward_training import BinaryClassifierConfig
    from referee.models.spec import square
    from referee.training.described import spec_fields
    from referee.training.options import FitOptions
    from referee.training.recipe import TrainOptions

    output, encoder = arguments.output_checkpoint, arguments.pretrained_encoder_path
    model = BinaryClassifierConfig(
        arch=arguments.backbone,
        width=arguments.width,
        image_size=square(arguments.image_size),
        hidden_dim=arguments.hidden_dim,
        num_spatial_blocks=arguments.num_spatial_blocks,
        freeze_encoder=not arguments.train_encoder,
    )
    return TrainOptions(
        data=DataConfig(
            positive_dir=str(arguments.positive_dir),
            negative_dir=str(arguments.negative_dir),
            cameras=(arguments.image_key,),
            val_split=arguments.val_split,
            split_seed=arguments.seed,
        ),
        output=arguments.log_path or output.with_suffix(""),
        model={**spec_fields(model), "cameras": (arguments.image_key,), "pretrained": encoder},
        fit=FitOptions(
            optimizer="adam",
            lr=arguments.lr,
            weight_decay=0.0,
            global_batch_size=arguments.batch_size,
            max_epochs=arguments.epochs,
            save_interval=0,
            best_metric=arguments.best_metric if arguments.val_split else "train_accuracy",
            seed=arguments.seed,
        ),
        checkpoints=(output,),
    )


def run(arguments: argparse.Namespace, console: Console) -> None:
    """Write pictures where they are asked for, and train."""
    from referee import cpu, printing
    from referee.audit.calibrated_training import train_and_calibrate
    from referee.runs.folder import RESULT, locked
    from referee.training.debug import save_positives
    from referee.training.recipe import check_paths

    options = job_of(arguments)
    check_paths(options)
    if (options.output / RESULT).exists() or (options.output / "checkpoints").exists():  # as RLinf's script does
        console.print(f"note: the earlier training in {options.output} is replaced", highlight=False, soft_wrap=True)
    if arguments.visualize_positive:
        folders = (arguments.positive_dir, arguments.negative_dir)
        count = save_positives(folders, arguments.image_key, arguments.vis_output_dir)
        console.print(f"{count} success frames as pictures in {arguments.vis_output_dir}", highlight=False)
    cpu.cap_if_needed()
    with locked(options.output, fix="choose another --log-path"):
        trained = train_and_calibrate(options, console, target=arguments.target_episode_fpr)
    printing.calibration(trained.choice, console)
    console.print(f"artifact {trained.folder}", highlight=False, soft_wrap=True)
