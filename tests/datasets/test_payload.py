"""The .pt files: the documented schema, one storage, the same pixels by every way in, and no code that runs."""

import hashlib
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from referee.datasets.payload import PayloadWriter, RewardBinaryDataset, RewardDatasetPayload, to_pixels
from referee.errors import RefereeError


def pixels(count: int = 10, views: int = 1, size: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, views, size, size + 1, 3), dtype=np.uint8)


def labels_of(count: int) -> np.ndarray:
    return np.arange(count) % 3 == 0


def write(path: Path, images: np.ndarray, chunk: int = 4, **metadata: Any) -> dict[str, Any]:
    labels = labels_of(len(images))
    with PayloadWriter(path) as writer:
        for start in range(0, len(images), chunk):
            writer.add(images[start : start + chunk], labels[start : start + chunk])
        return writer.finish(metadata)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("mmap", [True, False])
def test_torch_loads_the_documented_schema(tmp_path: Path, views: int, mmap: bool) -> None:
    images = pixels(10, views)
    written = write(tmp_path / "a.pt", images, source="here")
    payload = torch.load(tmp_path / "a.pt", mmap=mmap, weights_only=True)
    assert list(payload) == ["images", "labels", "metadata"] + ["extra_view_images"] * (views > 1)
    assert payload["labels"] == [1, 0, 0, 1, 0, 0, 1, 0, 0, 1] and payload["metadata"] == written
    for image, expected in zip(payload["images"], images, strict=True):
        assert image.dtype == torch.uint8 and image.is_contiguous()
        np.testing.assert_array_equal(image.numpy(), expected[0])
    tensors = payload["images"] + payload.get("extra_view_images", [])
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    assert tensors[0].untyped_storage().nbytes() == images.nbytes
    if views > 1:
        np.testing.assert_array_equal(torch.stack(payload["extra_view_images"]).numpy(), images[:, 1:])
    assert written["num_success"] == 4 and written["num_fail"] == 6 and written["views"] == views
    assert written["image_size"] == [6, 7] and written["version"] == "referee-frames-1"
    expected_hash = hashlib.sha256(images.tobytes() + bytes([1, 0, 0, 1, 0, 0, 1, 0, 0, 1])).hexdigest()
    assert written["content_hash"] == f"sha256:{expected_hash}"


def test_the_archive_is_whole_aligned_and_the_same_each_time(tmp_path: Path) -> None:
    images = pixels()
    for name in ("a.pt", "b.pt"):
        write(tmp_path / name, images, chunk=3 if name == "a.pt" else 7)
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        assert archive.testzip() is None
    assert (tmp_path / "a.pt").read_bytes()[64 : 64 + images.nbytes] == images.tobytes()


@pytest.mark.parametrize("views", [1, 2])
def test_the_dataset_reads_what_was_written(tmp_path: Path, views: int) -> None:
    images = pixels(10, views)
    write(tmp_path / "a.pt", images)
    dataset = RewardBinaryDataset(tmp_path / "a.pt")
    expected = images if views > 1 else images[:, 0]
    assert len(dataset) == 10 and dataset.sample_shape == expected.shape[1:]
    assert dataset.labels.tolist() == labels_of(10).astype(int).tolist()
    for chosen in ([3, 1, 1, -1], np.array([9, 0]), torch.tensor([5]), []):
        batch, labels = dataset.batch(chosen)
        index = np.asarray(chosen, int)
        assert batch.dtype == torch.uint8 and labels.dtype == torch.int64
        np.testing.assert_array_equal(batch.numpy(), expected[index])
        assert labels.tolist() == labels_of(10)[index].astype(int).tolist()
    image, label = dataset[3]
    np.testing.assert_array_equal(image.numpy(), expected[3])
    assert label == 1 and isinstance(label, int)
    buffer = torch.zeros((2, *dataset.sample_shape), dtype=torch.uint8)
    assert dataset.batch([7, 2], buffer)[0] is buffer
    np.testing.assert_array_equal(buffer.numpy(), expected[[7, 2]])
    for wrong in (10, -11):
        with pytest.raises(IndexError):
            dataset.batch([wrong])
    with pytest.raises(ValueError, match="out must be"):
        dataset.batch([1], buffer)
    dataset.verify()


def test_an_epoch_shows_every_sample_once(tmp_path: Path) -> None:
    images = pixels(10)
    images[:, 0, 0, 0, 0] = np.arange(10)  # each sample carries its number
    write(tmp_path / "a.pt", images)
    dataset = RewardBinaryDataset(tmp_path / "a.pt")

    def order(seed: int | None) -> list[int]:
        seen = []
        for batch, labels in dataset.epoch(4, seed=seed):
            numbers = batch[:, 0, 0, 0].tolist()
            assert labels.tolist() == [int(number % 3 == 0) for number in numbers]
            seen += [numbers]
        assert [len(numbers) for numbers in seen] == [4, 4, 2]
        return [number for numbers in seen for number in numbers]

    assert order(None) == list(range(10))
    assert order(1) == order(1) != order(2) and sorted(order(1)) == list(range(10))


def test_loaders_with_workers_read_it(tmp_path: Path) -> None:
    images = pixels(9)
    write(tmp_path / "a.pt", images)
    dataset = RewardBinaryDataset(tmp_path / "a.pt")
    again = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(again.batch([8])[0].numpy(), images[[8], 0])
    batches = list(DataLoader(dataset, batch_size=4, num_workers=2))
    np.testing.assert_array_equal(torch.cat([batch[0] for batch in batches]).numpy(), images[:, 0])


def test_opening_and_reading_holds_no_images(tmp_path: Path) -> None:
    """64 MB of images are read; the process grows by much less."""
    with PayloadWriter(tmp_path / "a.pt") as writer:
        for seed in range(16):
            writer.add(np.full((256, 1, 73, 73, 3), seed, np.uint8), np.zeros(256))
        writer.finish({})

    def private() -> int:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) // 1024

    before = private()
    dataset = RewardBinaryDataset(tmp_path / "a.pt")
    total = sum(int(images[:, 0, 0, 0].sum()) for images, _ in dataset.epoch(64, seed=0))
    assert total == sum(seed * 256 for seed in range(16))
    assert private() - before < 16


@pytest.mark.parametrize("layout", ["float CHW", "float HWC", "uint8 CHW", "uint8 HWC"])
@pytest.mark.parametrize("legacy", [False, True])
def test_lists_of_tensors_of_others_are_read_alike(tmp_path: Path, layout: str, legacy: bool) -> None:
    images = pixels(5)[:, 0]
    tensors = [torch.from_numpy(image) for image in images]
    if "CHW" in layout:
        tensors = [image.permute(2, 0, 1).contiguous() for image in tensors]
    if "float" in layout:
        tensors = [image.float() / 255 for image in tensors]
    payload = {"images": tensors, "labels": [0, 1, 0, 1, 1], "metadata": {"who": "they"}}
    torch.save(payload, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    dataset = RewardBinaryDataset(tmp_path / "a.pt")
    batch, labels = dataset.batch([4, 0])
    np.testing.assert_array_equal(batch.numpy(), images[[4, 0]])
    assert labels.tolist() == [1, 0] and dataset.metadata == {"who": "they"} and len(dataset) == 5
    assert RewardDatasetPayload.load(tmp_path / "a.pt").labels == [0, 1, 0, 1, 1]


def test_a_payload_saves_as_one_tensor(tmp_path: Path) -> None:
    images = pixels(4, 3)
    payload = RewardDatasetPayload(
        [torch.from_numpy(each[0]).permute(2, 0, 1) / 255 for each in images],
        [0, 1, 1, 0],
        {"a": 1},
        [torch.from_numpy(each[1:]) for each in images],
    )
    payload.save(tmp_path / "a.pt")
    np.testing.assert_array_equal(RewardBinaryDataset(tmp_path / "a.pt").batch(range(4))[0].numpy(), images)
    again = RewardDatasetPayload.load(tmp_path / "a.pt")
    assert again.labels == [0, 1, 1, 0] and again.metadata["a"] == 1
    np.testing.assert_array_equal(torch.stack(again.images).numpy(), images[:, 0])
    with pytest.raises(RefereeError, match="plain values"):
        RewardDatasetPayload(payload.images, payload.labels, {"a": object()}).save(tmp_path / "b.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_pictures_in_any_layout() -> None:
    square = torch.arange(27, dtype=torch.uint8).reshape(3, 3, 3)
    assert torch.equal(to_pixels(square), square)  # uint8 is HWC
    assert torch.equal(to_pixels(square.float() / 255), square.permute(1, 2, 0))  # float is CHW
    with pytest.raises(RefereeError, match="neither CHW nor HWC"):
        to_pixels(torch.zeros(4, 4, 1))
    with pytest.raises(RefereeError, match=r"outside 0\.\.1"):
        to_pixels(torch.full((3, 4, 4), 200.0))
    with pytest.raises(RefereeError, match="int64"):
        to_pixels(torch.zeros(4, 4, 3, dtype=torch.int64))


def test_writers_refuse_what_does_not_fit(tmp_path: Path) -> None:
    with PayloadWriter(tmp_path / "a.pt") as writer:
        with pytest.raises(RefereeError, match="at least one sample"):
            writer.finish({})
        writer.add(pixels(2), np.zeros(2))
        with pytest.raises(RefereeError, match="cannot be in one dataset"):
            writer.add(pixels(2, size=7), np.zeros(2))
        with pytest.raises(RefereeError, match="must be uint8"):
            writer.add(pixels(2).astype(np.float32), np.zeros(2))


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def test_code_inside_is_refused(tmp_path: Path) -> None:
    images = [torch.zeros(4, 4, 3, dtype=torch.uint8)]
    for legacy in (False, True):
        torch.save(
            {"images": images, "labels": [0], "metadata": Payload(tmp_path / "RAN")},
            tmp_path / "evil.pt",
            _use_new_zipfile_serialization=not legacy,
        )
        with pytest.raises(RefereeError, match=r"evil.pt: refers to .*system.*: refused"):
            RewardBinaryDataset(tmp_path / "evil.pt")
    assert not (tmp_path / "RAN").exists()


ONE = torch.zeros(4, 4, 3, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([ONE], "holds no images and labels"),
        ({"images": [ONE]}, "holds no images and labels"),
        ({"images": [], "labels": []}, "do not make a dataset"),
        ({"images": [ONE], "labels": [0, 1]}, "1 images and 2 labels"),
        ({"images": [ONE], "labels": [2]}, "labels must be 0 or 1"),
        ({"images": [ONE], "labels": ["x"]}, "a label is not a number"),
        ({"images": [3], "labels": [0]}, "an image is a int"),
        ({"images": [ONE, ONE[:2]], "labels": [0, 1]}, "are mixed"),
        ({"images": [ONE[..., :1]], "labels": [0]}, "neither CHW nor HWC"),
        ({"images": [ONE], "labels": [0], "metadata": 3}, "metadata"),
    ],
)
def test_what_is_no_dataset_is_refused_by_name(tmp_path: Path, content: Any, reason: str) -> None:
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(RefereeError, match=f"a.pt: .*{reason}"):
        RewardBinaryDataset(tmp_path / "a.pt")
    with pytest.raises(RefereeError, match=r"none.pt is not there"):
        RewardBinaryDataset(tmp_path / "none.pt")


def refusal(path: Path) -> str | None:
    try:
        dataset = RewardBinaryDataset(path)
        dataset.batch(range(len(dataset)))
    except RefereeError as error:
        return str(error)
    return None


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_no_bytes_can_do_more_than_be_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.pt"
    write(path, pixels(3, size=2))
    content = bytearray(path.read_bytes())
    start = data.draw(st.sampled_from([0, 64 + 3 * 2 * 3 * 3]))  # headers: before the images, and behind them
    for _ in range(data.draw(st.integers(0, 6))):
        place = data.draw(st.integers(start, len(content) - 1 if start else 63))
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    said = refusal(path)  # anything but a refusal fails the test
    assert said is None or ("\n" not in said and "fuzz.pt" in said)


def test_changed_content_is_found(tmp_path: Path) -> None:
    write(tmp_path / "a.pt", pixels())
    content = bytearray((tmp_path / "a.pt").read_bytes())
    content[100] ^= 1
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(RefereeError, match=r"a\.pt: has changed since it was written"):
        RewardBinaryDataset(tmp_path / "a.pt")
    dataset = RewardBinaryDataset(tmp_path / "a.pt", verify=False)
    with pytest.raises(RefereeError, match="not what was written"):
        dataset.verify()
    (tmp_path / "a.pt").write_bytes(content[:70])
    with pytest.raises(RefereeError, match="has become shorter"):
        dataset.batch([0])
