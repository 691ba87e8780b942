"""train.pt and val.pt: the documented payload, its images views of one tensor, so that a file need not be loaded.

Any `torch.load(path, mmap=True, weights_only=True)` gives {images, labels, metadata}. The same archive holds labels and
metadata as JSON too: `RewardBinaryDataset` opens it without unpickling twenty thousand tensors one by one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch.utils.data import Dataset

from referee import checksums, files
from referee.errors import RefereeError
from referee.reading.safe_load import load_torch

FORMAT = "referee-frames-1"
_IMAGES, _HEADER = "archive/data/0", "archive/referee.json"


@dataclass
class RewardDatasetPayload:
    """What a .pt file holds. Further cameras, where there are some, are in `extra_view_images` [V-1,H,W,3]."""

    images: list[torch.Tensor]
    labels: list[int]
    """1 success, 0 failure: of that very frame."""
    metadata: dict[str, Any] = field(default_factory=dict)
    extra_view_images: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels) or len(self.extra_view_images) not in (0, len(self.images)):
            raise RefereeError(f"{len(self.images)} images and {len(self.labels)} labels do not make a dataset")

    def save(self, path: Path | str) -> None:
        """Write uint8 images as views of one tensor; the whole file, or none of it."""
        rows = _TensorRows(self, Path(path))
        with files.replacing(Path(path)) as temporary, PayloadWriter(temporary) as writer:
            for index, label in enumerate(_binary(self.labels, path)):
                sample = rows.sample(index)
                writer.add(sample.numpy().reshape(1, -1, *sample.shape[-3:]), np.array([label]))
            writer.finish(self.metadata)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read any .pt of this schema, ours or another's, memory-mapped; code inside is refused."""
        path = Path(path)
        if not path.exists():
            raise RefereeError(f"{path} is not there")
        values = load_torch(path)
        if not isinstance(values, dict) or not {"images", "labels"} <= values.keys():
            raise RefereeError(f"{path}: holds no images and labels, as a reward dataset must")
        images, labels, metadata = values["images"], values["labels"], values.get("metadata", {})
        extra = values.get("extra_view_images", [])
        if not isinstance(images, list | torch.Tensor) or not isinstance(labels, list | torch.Tensor):
            raise RefereeError(f"{path}: images and labels must be lists")
        if len(images) != len(labels) or not len(images):
            raise RefereeError(f"{path}: {len(images)} images and {len(labels)} labels do not make a dataset")
        images = list(images)
        if not isinstance(extra, list) or len(extra) not in (0, len(images)) or not isinstance(metadata, dict):
            raise RefereeError(f"{path}: extra_view_images or metadata are not as they must be")
        for image in [*images, *extra]:
            if not isinstance(image, torch.Tensor):
                raise RefereeError(f"{path}: an image is a {type(image).__name__}, not a tensor")
        return cls(images, _binary(labels, path), metadata, extra)


class PayloadWriter:
    """Writes a payload piece by piece: no more than the piece is held in memory."""

    def __init__(self, path: Path) -> None:
        self._path, self._complete = path, False
        self._zip = zipfile.ZipFile(path, "w")
        # The first record of the archive: with this name, and the sizes in 64 bits, its data begins at byte 64.
        self._images = self._zip.open(_entry(_IMAGES), "w", force_zip64=True)
        self._digest = hashlib.sha256()
        self._labels: list[int] = []
        self._shape: tuple[int, ...] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._images.closed:
            self._images.close()
        self._zip.close()
        if self._complete:
            checksums.seal_zip(self._path)

    def add(self, images: np.ndarray, labels: np.ndarray) -> None:
        """Further samples: uint8[n,V,H,W,3] and their labels."""
        if images.ndim != 5 or images.shape[-1] != 3 or images.dtype != np.uint8 or len(images) != len(labels):
            raise RefereeError(f"samples must be uint8[n,V,H,W,3], not {images.dtype}{list(images.shape)}")
        self._shape = self._shape or images.shape[1:]
        if images.shape[1:] != self._shape:
            raise RefereeError(f"images of {_size(images.shape)} and of {_size(self._shape)} cannot be in one dataset")
        data = np.ascontiguousarray(images).reshape(-1).data
        self._images.write(data)
        self._digest.update(data)
        self._labels += [int(label) for label in labels]

    def finish(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Complete the file; returns the metadata in it, with size, counts and content hash."""
        if self._shape is None:
            raise RefereeError("a dataset needs at least one sample")
        self._images.close()
        self._digest.update(bytes(self._labels))
        views, height, width, _ = self._shape
        full = {
            **metadata, "version": FORMAT, "image_size": [height, width], "views": views, "layout": "uint8 HWC",
            "num_success": sum(self._labels), "num_fail": len(self._labels) - sum(self._labels),
            "content_hash": f"sha256:{self._digest.hexdigest()}",
        }  # fmt: skip
        shape = [len(self._labels), *self._shape]
        header = {"format": FORMAT, "shape": shape, "labels": self._labels, "metadata": full}
        try:
            text = json.dumps(header, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise RefereeError(f"metadata hold more than plain values ({error})") from error
        for name, content in (
            ("archive/data.pkl", _pickled(shape, self._labels, full)), ("archive/byteorder", b"little"),
            ("archive/version", b"3\n"), (_HEADER, text),
        ):  # fmt: skip
            self._zip.writestr(_entry(name), content)
        self._complete = True
        return full


class RewardBinaryDataset(Dataset[tuple[torch.Tensor, int]]):
    """Frames and their labels out of a .pt file. Samples are uint8[H,W,3], or uint8[V,H,W,3] with several cameras.

    Our own files are read sample by sample, straight into the batch: neither opening one nor an epoch over it holds the
    images in memory. Others' lists of tensors (float or uint8, CHW or HWC) are brought to the same form.
    """

    def __init__(self, path: Path | str, *, verify: bool = True) -> None:
        """verify: read all of it once, and refuse a file that has changed since it was written."""
        self.path = Path(path)
        own = _open_own(self.path)
        if own is not None:
            self._rows: _FileRows | _TensorRows = own[0]
            labels, self.metadata = own[1], own[2]
        else:
            payload = RewardDatasetPayload.load(self.path)
            self._rows = _TensorRows(payload, self.path)
            labels, self.metadata = payload.labels, payload.metadata
        if verify and zipfile.is_zipfile(self.path):
            checksums.verify_zip(self.path)
        self.labels = torch.tensor(labels)
        """int64[N]"""
        self.sample_shape = self._rows.shape

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.path,)  # another process opens the file for itself

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        images, labels = self.batch([index])
        return images[0], int(labels[0])

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        """What a DataLoader asks for: the samples of a batch, read at once."""
        images, labels = self.batch(indices)
        return list(zip(images, labels.tolist(), strict=True))

    def batch(
        self, indices: Sequence[int] | np.ndarray | torch.Tensor, out: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples uint8[n,…] and labels int64[n]; `out` is filled instead of a new tensor where it is given."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        count = len(self)
        if len(chosen) and not (int(chosen.min()) >= -count and int(chosen.max()) < count):
            raise IndexError(f"{self.path} has {count} samples, so no index {int(chosen.max())}")
        chosen = torch.where(chosen < 0, chosen + count, chosen)
        if out is None:
            out = torch.empty((len(chosen), *self.sample_shape), dtype=torch.uint8)
        elif out.shape != (len(chosen), *self.sample_shape) or out.dtype != torch.uint8 or not out.is_contiguous():
            raise ValueError(f"out must be uint8{[len(chosen), *self.sample_shape]}")
        self._rows.read(chosen.tolist(), out)
        return out, self.labels[chosen]

    def epoch(self, batch_size: int, *, seed: int | None = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Every sample once, shuffled by the seed, or in order for None; the last batch may be smaller.

        The images are in one buffer: a batch is good until the next is asked for.
        """
        order = torch.arange(len(self))
        if seed is not None:
            order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        buffer = torch.empty((min(batch_size, len(self)), *self.sample_shape), dtype=torch.uint8)
        for start in range(0, len(self), batch_size):
            chosen = order[start : start + batch_size]
            yield self.batch(chosen, buffer[: len(chosen)])

    def verify(self) -> None:
        """Raise unless images and labels have the hash that the metadata says."""
        digest = hashlib.sha256()
        for images, _ in self.epoch(256):
            digest.update(images.numpy().reshape(-1).data)
        digest.update(bytes(self.labels.tolist()))
        said = self.metadata.get("content_hash")
        if said != f"sha256:{digest.hexdigest()}":
            raise RefereeError(f"{self.path}: its content is not what was written (hash)")


def _opened(path: Path) -> RewardBinaryDataset:
    """A file that was verified where it was opened first."""
    return RewardBinaryDataset(path, verify=False)


class _FileRows:
    """Samples that stand one behind the other in a file."""

    def __init__(self, path: Path, offset: int, shape: tuple[int, ...]) -> None:
        self.path, self.shape = path, shape
        self._offset, self._bytes = offset, int(np.prod(shape))
        self._file = path.open("rb", buffering=0)

    def read(self, indices: Sequence[int], out: torch.Tensor) -> None:
        # Not through a mapping: every page read would count as memory of this process.
        handle, size = self._file.fileno(), self._bytes
        memory = out.numpy().reshape(-1).data
        for place, index in enumerate(indices):
            target = memory[place * size : (place + 1) * size]
            start = self._offset + index * size
            while len(target):
                got = os.preadv(handle, [target], start)
                if not got:
                    raise RefereeError(f"{self.path}: has become shorter since it was opened")
                target, start = target[got:], start + got


class _TensorRows:
    """Samples in tensors of their own, as others write them."""

    def __init__(self, payload: RewardDatasetPayload, path: Path) -> None:
        self._images, self._extra = payload.images, payload.extra_view_images
        for name, tensors in (("images", self._images), ("extra_view_images", self._extra)):
            strange = next((image.shape for image in tensors if image.shape != tensors[0].shape), None)
            if strange is not None:
                raise RefereeError(f"{path}: {name} of {list(tensors[0].shape)} and {list(strange)} are mixed")
        try:
            self.shape: tuple[int, ...] = tuple(self.sample(0).shape)
        except (RefereeError, RuntimeError) as error:
            raise RefereeError(f"{path}: {error}") from error

    def read(self, indices: Sequence[int], out: torch.Tensor) -> None:
        for place, index in enumerate(indices):
            out[place] = self.sample(index)

    def sample(self, index: int) -> torch.Tensor:
        """uint8[H,W,3] or [V,H,W,3]"""
        main = to_pixels(self._images[index])
        return torch.cat([main[None], to_pixels(self._extra[index])]) if self._extra else main


def to_pixels(image: torch.Tensor) -> torch.Tensor:
    """uint8[…,H,W,3] of an image that is float in 0..1 or uint8, and CHW or HWC."""
    if image.ndim < 3 or 3 not in (image.shape[-1], image.shape[-3]):
        raise RefereeError(f"an image of {list(image.shape)} is neither CHW nor HWC with three colours")
    # Where both could be colours, float images are CHW and uint8 images are HWC, as everybody writes them.
    first = image.shape[-3] == 3 and (image.shape[-1] != 3 or image.is_floating_point())
    if first:
        image = image.movedim(-3, -1)
    if image.is_floating_point():
        if not bool(((image >= 0) & (image <= 1)).all()):
            raise RefereeError("a float image has values outside 0..1")
        image = (image * 255).round().to(torch.uint8)
    if image.dtype != torch.uint8:
        raise RefereeError(f"an image is {image.dtype}, but uint8 or float is needed")
    return image.contiguous()


def _open_own(path: Path) -> tuple[_FileRows, list[int], dict[str, Any]] | None:
    """Samples, labels and metadata of a file that `PayloadWriter` wrote; None for any other."""
    try:
        with zipfile.ZipFile(path) as archive:
            if _HEADER not in archive.NameToInfo:
                return None
            if archive.getinfo(_HEADER).compress_type or archive.getinfo(_IMAGES).compress_type:
                raise ValueError("it is compressed")
            header = json.loads(archive.read(_HEADER))
            images = archive.getinfo(_IMAGES)
        with path.open("rb") as file:
            file.seek(images.header_offset)
            local = file.read(30)
        # The local header, its name and its extra field come before the data.
        offset = images.header_offset + 30 + sum(struct.unpack("<HH", local[26:30]))
        shape, metadata = header["shape"], header["metadata"]
        if header["format"] != FORMAT or len(shape) != 5 or not all(type(n) is int and 0 < n < 2**40 for n in shape):
            raise ValueError("its header is not one of ours")
        size = 1
        for extent in shape:
            size *= extent
        if size != images.file_size or offset + size > path.stat().st_size:
            raise ValueError("it is cut off")
        if len(header["labels"]) != shape[0] or not isinstance(metadata, dict):
            raise ValueError("its labels do not fit its images")
        views = tuple(shape[1:]) if shape[1] > 1 else tuple(shape[2:])
        return _FileRows(path, offset, views), _binary(header["labels"], path), metadata
    except zipfile.BadZipFile:
        return None  # from before zip archives, or broken: torch tells them apart
    except FileNotFoundError as error:
        raise RefereeError(f"{path} is not there") from error
    except (
        OSError, ValueError, KeyError, struct.error, TypeError, RecursionError, NotImplementedError, EOFError
    ) as error:  # fmt: skip
        raise RefereeError(f"{path}: is broken ({_brief(error)})") from error


class _Storage:
    """Stands for the one tensor in the file."""


class _View:
    """Stands for a part of it; it is pickled as torch pickles a tensor."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return torch._utils._rebuild_tensor_v2, self._arguments


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, size: int) -> None:
        super().__init__(file, protocol=2)
        self._id = ("storage", torch.ByteStorage, "0", "cpu", size)

    def persistent_id(self, obj: Any) -> Any:
        return self._id if isinstance(obj, _Storage) else None


def _pickled(shape: Sequence[int], labels: list[int], metadata: dict[str, Any]) -> bytes:
    """`data.pkl` of the archive: the lists of views, without the tensor that they are views of."""
    count, views, height, width, colours = shape
    size, stride = (height, width, colours), (width * colours, colours, 1)
    one = height * width * colours
    storage = _Storage()
    hooks: OrderedDict[Any, Any] = OrderedDict()
    values: dict[str, Any] = {
        "images": [_View(storage, i * views * one, size, stride, False, hooks) for i in range(count)],
        "labels": labels,
        "metadata": metadata,
    }
    if views > 1:
        sizes, strides = (views - 1, *size), (one, *stride)
        values["extra_view_images"] = [
            _View(storage, (i * views + 1) * one, sizes, strides, False, hooks) for i in range(count)
        ]
    file = io.BytesIO()
    _Pickler(file, count * views * one).dump(values)
    return file.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name)  # without the time: the same data makes the same file


def _binary(labels: Any, path: Path | str) -> list[int]:
    try:
        values = [float(label) for label in labels]
    except (TypeError, ValueError, RuntimeError) as error:
        raise RefereeError(f"{path}: a label is not a number ({_brief(error)})") from error
    if not set(values) <= {0.0, 1.0}:
        raise RefereeError(f"{path}: labels must be 0 or 1")
    return [int(value) for value in values]


def _brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = next((line for line in lines if "GLOBAL" in line), lines[0] if lines else type(error).__name__)
    return named[:200]


def _size(shape: Sequence[int]) -> str:
    return f"{shape[-2]}x{shape[-3]} px ({shape[-4]} views)"
