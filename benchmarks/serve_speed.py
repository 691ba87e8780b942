"""Prints how fast `referee serve` answers: images/s, latency and lost answers, with clients in a process of their own.

Each request holds one frame, and its answer is compared with the model's own number for that frame: an answer that is
missing, refused, or another frame's counts as lost. The model alone, on single frames and on batches, stands beside it.
"""

import argparse
import http.client
import io
import json
import multiprocessing
import statistics
import sys
import threading
import time
from typing import Any

import numpy as np

TOKEN = "a-token-for-the-benchmark"


def ask(
    port: int, kind: str, bodies: list[bytes], expected: list[float], clients: int, requests: int
) -> dict[str, Any]:
    """Many clients, each on one connection, each waiting for its answer before it asks again."""
    latencies: list[list[float]] = [[] for _ in range(clients)]
    right = [0] * clients
    gate = threading.Barrier(clients + 1)

    def one(client: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
        connection.connect()
        gate.wait()
        for number in range(client, requests, clients):
            place = number % len(bodies)
            start = time.perf_counter()
            try:
                connection.request("POST", "/v1/score", bodies[place], headers)
                answer = connection.getresponse().read()
                said = json.loads(answer).get("score", [])
                right[client] += len(said) == 1 and abs(said[0] - expected[place]) < 2e-5
            except (OSError, http.client.HTTPException, ValueError):
                connection.close()  # lost; the next one opens a new connection
            latencies[client].append(1e3 * (time.perf_counter() - start))
        connection.close()

    threads = [threading.Thread(target=one, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    gate.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    p50, p99 = np.percentile(np.concatenate([np.array(each) for each in latencies]), [50, 99])
    return {"images/s": requests / seconds, "p50": float(p50), "p99": float(p99), "lost": requests - sum(right)}


def make_artifact(arch: str, pixels: int) -> tuple[Any, np.ndarray]:
    """A model of real size, and frames that it tells apart; that it is not trained changes no time."""
    import torch

    from referee.models import Artifact, ModelSpec, Reference, build
    from referee.models.artifact import embed

    torch.manual_seed(0)
    model = build(ModelSpec(arch=arch, image_size=pixels, cameras=("front",))).eval()
    coarse = np.random.default_rng(0).integers(0, 256, (256, 4, 4, 3), dtype=np.uint8)
    frames = coarse.repeat(pixels // 4, 1).repeat(pixels // 4, 2)
    scores = model.logits(frames)
    order = np.argsort(scores)
    frames = frames[order[np.concatenate([[True], np.diff(scores[order]) > 1e-4])]]
    return Artifact(model, reference=Reference.of(embed(model, frames), frames)), frames


def encode(frame: np.ndarray, kind: str) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    if kind == "application/x-npy":
        np.save(buffer, frame[None])
    else:
        Image.fromarray(frame).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def alone(artifact: Any, frames: np.ndarray) -> str:
    """The model without a server."""
    batch = np.concatenate([frames] * (256 // len(frames) + 1))[:256]
    artifact.judge(batch)
    single, whole = [], []
    for number in range(50):
        start = time.perf_counter()
        artifact.judge(frames[number % len(frames)][None])
        single.append(1e3 * (time.perf_counter() - start))
    for _ in range(3):
        start = time.perf_counter()
        artifact.judge(batch)
        whole.append(time.perf_counter() - start)
    return f"one frame {statistics.median(single):.2f} ms, batches of 256 {256 / statistics.median(whole):.0f} images/s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--arch", default="resnet10")
    parser.add_argument("--pixels", type=int, default=128)
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--threads", type=int, default=1, help="of the model")
    parser.add_argument("--kinds", nargs="+", default=["application/x-npy", "image/png"])
    args = parser.parse_args()

    from referee import cpu

    cpu.cap_if_needed()
    import torch

    from referee.serving import ScoringServer

    torch.set_num_threads(args.threads)
    artifact, frames = make_artifact(args.arch, args.pixels)
    lost = 0
    with (
        ScoringServer(artifact, token=TOKEN, backend=args.backend) as server,
        multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
        expected = artifact.judge(frames).score.tolist()
        print(f"{args.arch} at {args.pixels} px on {server.backend}, {args.threads} thread(s); {len(frames)} frames")
        print(f"the model alone: {alone(artifact, frames)}\n")
        print("| clients | body | images/s | p50 ms | p99 ms | lost |\n|---:|---|---:|---:|---:|---:|")
        for kind in args.kinds:
            bodies = [encode(frame, kind) for frame in frames]
            pool.apply(ask, (server.port, kind, bodies, expected, 8, 100))
            for clients in args.clients:
                found = pool.apply(ask, (server.port, kind, bodies, expected, clients, args.requests))
                lost += found["lost"]
                print(
                    f"| {clients} | {kind} | {found['images/s']:.0f} | {found['p50']:.1f} | {found['p99']:.1f} "
                    f"| {found['lost']} of {args.requests} |",
                    flush=True,
                )
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
