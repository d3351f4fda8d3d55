"""The wire form: how records pass between a backend in another process and its client.

A frame is ``magic, header length (uint32), body length (uint64), header, body``, little-endian.
The header is JSON: ``{"value": tree, "sizes": [bytes of each blob]}``; the body is the blobs one
after another. In the tree plain JSON stands for None, booleans, integers, finite floats, strings
and lists, and an object with one key for the rest::

    {"array": i}   blob i, in npy form        {"bytes": i}   blob i as it is; each blob once
    {"dict": {name: tree}}                    {"float": "nan" | "inf" | "-inf"}
    {"record": [name, {field: tree}]}         a NamedTuple that the receiver knows by name

Nothing is ever unpickled, and a reader gives up before it allocates more than its limits allow.
"""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib import format as npy

from envs.core import Decision, EnvSpec, Outcome

MAGIC = b"EWF1"
_PREFIX = struct.Struct("<4sIQ")
_CHUNK = 1 << 20
_NPY_HEADER = 4096  # bytes that an npy header may take
_SCALARS = (bool, int, str, type(None))

Read = Callable[[int], bytes]
"""``read(n)`` gives at least one and at most n bytes, or none at the end of the stream."""


class WireError(ValueError):
    """A frame that is cut off, too large, or malformed."""


class WireClosedError(WireError):
    """The stream ended between two frames: the other side has gone."""


@dataclass(frozen=True)
class Limits:
    """What a reader accepts and a writer sends; bytes, except for ``blobs`` and ``depth``."""

    header: int = 1 << 20
    blob: int = 1 << 29
    frame: int = 1 << 30
    blobs: int = 4096
    depth: int = 32


DEFAULT_LIMITS = Limits()


def known_records(spec: EnvSpec | None = None) -> dict[str, type]:
    """NamedTuples that may travel: Decision and Outcome, and the spec's noise records."""
    records: dict[str, type] = {"Decision": Decision, "Outcome": Outcome}
    if spec is not None:
        records.update(ResetNoise=spec.ResetNoise, StepNoise=spec.StepNoise)
    return records


# --- writing ----------------------------------------------------------------------------------


def encode_frame(value: Any, limits: Limits = DEFAULT_LIMITS) -> Iterator[bytes | memoryview]:
    """The frame of a value, in pieces.

    Raises:
        WireError: the frame exceeds the limits.
        TypeError: the value holds something that has no wire form (a plain tuple, an object
            array, a JAX array).
    """
    blobs: list[list[bytes | memoryview]] = []
    tree = _encode(value, blobs, limits.depth)
    sizes = [sum(len(piece) for piece in blob) for blob in blobs]
    header = json.dumps({"value": tree, "sizes": sizes}, allow_nan=False).encode()
    _check_sizes(len(header), sum(sizes), limits)
    _check_blobs(sizes, sum(sizes), limits)
    yield _PREFIX.pack(MAGIC, len(header), sum(sizes))
    yield header
    for blob in blobs:
        yield from blob


def _encode(value: Any, blobs: list[list[bytes | memoryview]], depth: int) -> Any:
    if depth == 0:
        raise WireError("the value is nested too deeply")
    if isinstance(value, (np.ndarray, np.generic)):
        blobs.append(_npy_pieces(np.asarray(value)))
        return {"array": len(blobs) - 1}
    if isinstance(value, (bytes, bytearray)):
        blobs.append([bytes(value)])
        return {"bytes": len(blobs) - 1}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, list):
        return [_encode(item, blobs, depth - 1) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("keys of a dict on the wire must be strings")
        return {"dict": {key: _encode(item, blobs, depth - 1) for key, item in value.items()}}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = zip(value._fields, value, strict=True)
        encoded = {name: _encode(item, blobs, depth - 1) for name, item in fields}
        return {"record": [type(value).__name__, encoded]}
    raise TypeError(f"no wire form for a {type(value).__name__}")


def _npy_pieces(array: np.ndarray) -> list[bytes | memoryview]:
    if not _travels(array.dtype):
        raise TypeError(f"no wire form for arrays of dtype {array.dtype}")
    array = np.asarray(array, order="C")
    data = array.reshape(-1).view(np.uint8).data if array.size else b""
    return [_npy_header(array.dtype.str, array.shape), data]


@lru_cache(maxsize=1024)
def _npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    described = {"descr": descr, "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(buffer, described)
    return buffer.getvalue()


def _travels(dtype: np.dtype) -> bool:
    return dtype.kind in "biuf" and dtype.itemsize <= 8 and dtype.isnative


# --- reading ----------------------------------------------------------------------------------


def read_frame(
    read: Read, records: Mapping[str, type] | None = None, limits: Limits = DEFAULT_LIMITS
) -> Any:
    """The next value of a stream; its arrays are the caller's own and writable.

    Args:
        records: the NamedTuples that are accepted, see :func:`known_records`.

    Raises:
        WireClosedError: the stream ended before the frame began.
        WireError: the frame is cut off, exceeds the limits, or is malformed.
    """
    prefix = _read_exactly(read, _PREFIX.size, "prefix")
    magic, header_size, body_size = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise WireError(f"this is no frame: it begins with {bytes(prefix)!r}")
    _check_sizes(header_size, body_size, limits)
    tree, sizes = _parse_header(_read_exactly(read, header_size, "header"))
    _check_blobs(sizes, body_size, limits)
    blobs: list[bytearray | None] = [
        _read_exactly(read, size, f"blob {i}") for i, size in enumerate(sizes)
    ]
    return _decode(tree, blobs, known_records() if records is None else records, limits.depth)


def _read_exactly(read: Read, size: int, what: str) -> bytearray:
    """Grows with what arrives, so that a frame which lies about its size costs nothing."""
    data = bytearray()
    while len(data) < size:
        piece = read(min(size - len(data), _CHUNK))
        if not piece:
            if what == "prefix" and not data:
                raise WireClosedError("the stream ended")
            raise WireError(f"the stream ended in the {what}, after {len(data)} of {size} bytes")
        data += piece
    return data


def _check_sizes(header: int, body: int, limits: Limits) -> None:
    if header > limits.header:
        raise WireError(f"a header of {header} bytes exceeds the limit of {limits.header}")
    if header + body > limits.frame:
        raise WireError(f"a frame of {header + body} bytes exceeds the limit of {limits.frame}")


def _check_blobs(sizes: list[int], body: int, limits: Limits) -> None:
    if len(sizes) > limits.blobs:
        raise WireError(f"{len(sizes)} arrays in one frame exceed the limit of {limits.blobs}")
    if sizes and max(sizes) > limits.blob:
        raise WireError(f"an array of {max(sizes)} bytes exceeds the limit of {limits.blob}")
    if sum(sizes) != body:
        raise WireError(f"the arrays take {sum(sizes)} bytes, the frame announces {body}")


def _parse_header(data: bytearray) -> tuple[Any, list[int]]:
    try:
        header = json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the header is not readable ({error})") from None
    if not isinstance(header, dict) or set(header) != {"value", "sizes"}:
        raise WireError("the header needs exactly the keys value and sizes")
    sizes = header["sizes"]
    if not isinstance(sizes, list) or not all(type(s) is int and s >= 0 for s in sizes):
        raise WireError("sizes must be a list of byte counts")
    return header["value"], sizes


def _no_constant(name: str) -> Any:
    raise WireError(f"{name} is not JSON")


def _decode(
    tree: Any, blobs: list[bytearray | None], records: Mapping[str, type], depth: int
) -> Any:
    if depth == 0:
        raise WireError("the value is nested too deeply")
    if isinstance(tree, list):
        return [_decode(item, blobs, records, depth - 1) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) != 1:
        raise WireError(f"an object in the header needs one key, got {sorted(tree)[:4]}")
    ((tag, content),) = tree.items()
    if tag == "array":
        return _parse_npy(_take(blobs, content))
    if tag == "bytes":
        return bytes(_take(blobs, content))
    if tag == "float" and content in ("nan", "inf", "-inf"):
        return float(content)
    if tag == "dict":
        return _decode_items(content, blobs, records, depth)
    if tag == "record":
        return _decode_record(content, blobs, records, depth)
    raise WireError(f"unknown entry {tag!r} in the header")


def _decode_items(
    content: Any, blobs: list[bytearray | None], records: Mapping[str, type], depth: int
) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise WireError("a dict or record in the header needs named entries")
    return {name: _decode(item, blobs, records, depth - 1) for name, item in content.items()}


def _decode_record(
    content: Any, blobs: list[bytearray | None], records: Mapping[str, type], depth: int
) -> Any:
    if not isinstance(content, list) or len(content) != 2 or not isinstance(content[0], str):
        raise WireError("a record needs a name and fields")
    kind = records.get(content[0])
    if kind is None:
        raise WireError(f"unknown record {content[0]!r}; known: {', '.join(records)}")
    fields = _decode_items(content[1], blobs, records, depth)
    if set(fields) != set(kind._fields):  # type: ignore[attr-defined]
        raise WireError(f"{content[0]} does not have the fields {sorted(fields)}")
    return kind(**fields)


def _take(blobs: list[bytearray | None], index: Any) -> bytearray:
    """A blob, once: many entries for one blob would let a small frame fill the memory."""
    if type(index) is not int or not 0 <= index < len(blobs):
        raise WireError(f"there is no array {index!r} in the frame")
    blob, blobs[index] = blobs[index], None
    if blob is None:
        raise WireError(f"array {index} is used twice")
    return blob


def _parse_npy(data: bytearray) -> np.ndarray:
    start = 10 + int.from_bytes(data[8:10], "little")  # version 1.0: a 16-bit header length
    if start > min(len(data), _NPY_HEADER):
        raise WireError(f"an array is not readable (its header ends at {start})")
    shape, fortran, dtype = _parse_npy_header(bytes(data[:start]))
    expected, present = math.prod(shape) * dtype.itemsize, len(data) - start
    if expected != present or min(shape, default=0) < 0:
        raise WireError(f"an array {dtype}{shape} with {present} bytes of data")
    try:
        if not expected:
            return np.zeros(shape, dtype)
        flat = np.frombuffer(data, dtype, offset=start)
        return flat.reshape(shape, order="F" if fortran else "C")
    except ValueError as error:  # more axes, or longer ones, than numpy has
        raise WireError(f"an array {dtype}{shape}: {error}") from None


@lru_cache(maxsize=1024)  # numpy evaluates the text; the same few headers come in every frame
def _parse_npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    stream = io.BytesIO(header)
    try:
        if npy.read_magic(stream) != (1, 0):
            raise WireError("arrays must be of npy version 1.0")
        shape, fortran, dtype = npy.read_array_header_1_0(stream, max_header_size=_NPY_HEADER)
    except WireError:
        raise
    except Exception as error:  # numpy's parser raises many kinds on bad input
        raise WireError(f"an array is not readable ({error})") from None
    if not _travels(dtype) or dtype.fields is not None:
        raise WireError(f"arrays of dtype {dtype} are not accepted")
    return shape, fortran, dtype
