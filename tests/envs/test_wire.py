"""Frames round trip whatever the contract passes around, and refuse whatever else arrives."""

import contextlib
import io
import json
import math
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from envs import make_spec
from envs.core import Decision, Outcome
from envs.noise import draw_reset_noise
from envs.wire import (
    DEFAULT_LIMITS,
    MAGIC,
    Limits,
    WireClosedError,
    WireError,
    encode_frame,
    known_records,
    read_frame,
)

SMALL = Limits(header=4096, blob=1 << 14, frame=1 << 15, blobs=8, depth=6)
DTYPES = ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "f2", "f4", "f8"]


def pack(value, limits=DEFAULT_LIMITS):
    return b"".join(bytes(piece) for piece in encode_frame(value, limits))


def unpack(data, records=None, limits=DEFAULT_LIMITS):
    return read_frame(io.BytesIO(data).read, records, limits)


def raw_frame(header, body=b"", header_size=None, body_size=None, magic=MAGIC):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    sizes = (header_size or len(header), len(body) if body_size is None else body_size)
    return struct.pack("<4sIQ", magic, *sizes) + header + body


def npy_blob(array, version=(1, 0)):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version, allow_pickle=True)
    return buffer.getvalue()


def array_frame(blob):
    return raw_frame({"value": {"array": 0}, "sizes": [len(blob)]}, blob)


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tobytes() == b.tobytes()  # NaN payloads too
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_same(left, right)
    elif isinstance(a, float):
        assert struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    else:
        assert a == b


arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=40)
    | arrays
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        | st.builds(Decision, inner, inner, inner, inner)
        | st.builds(Outcome, inner, inner, inner, inner, inner, inner, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(values)
def test_any_value_comes_back_as_it_was(value):
    assert_same(unpack(pack(value)), value)


@settings(max_examples=100, deadline=None)
@given(hnp.arrays("uint32", hnp.array_shapes(min_dims=0, min_side=0)))
def test_every_float32_bit_pattern_survives(bits):
    array = bits.view(np.float32) if bits.ndim else np.float32(bits.view(np.float32))
    assert unpack(pack(array)).tobytes() == bits.tobytes()


def test_arrays_in_any_memory_order_arrive_in_c_order_and_writable():
    array = np.asfortranarray(np.arange(12).reshape(3, 4))[::2, ::-1]
    received = unpack(pack(array))
    np.testing.assert_array_equal(received, array)
    received[0, 0] = 77
    assert received.flags.c_contiguous


def test_fortran_blobs_of_other_writers_are_read():
    array = np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3))
    np.testing.assert_array_equal(unpack(array_frame(npy_blob(array))), array)


def test_noise_records_come_back_as_the_specs_own_type():
    spec = make_spec("cartpole")
    noise = draw_reset_noise(spec, 3, 0, np.arange(5, dtype=np.uint32))
    received = unpack(pack(noise), known_records(spec))
    assert type(received) is spec.ResetNoise
    assert_same(received, noise)
    empty = unpack(pack(spec.StepNoise()), known_records(spec))
    assert empty == spec.StepNoise()


def test_frames_follow_one_another_on_a_stream():
    stream = io.BytesIO(pack([1]) + pack({"a": b"xyz"}))
    assert read_frame(stream.read) == [1]
    assert read_frame(stream.read) == {"a": b"xyz"}
    with pytest.raises(WireClosedError):
        read_frame(stream.read)


def test_a_stream_that_gives_one_byte_at_a_time_is_enough():
    data = io.BytesIO(pack({"x": np.arange(5), "y": "text"}))
    received = read_frame(lambda n: data.read(min(n, 1)))
    np.testing.assert_array_equal(received["x"], np.arange(5))


def test_every_cut_of_a_frame_is_named():
    data = pack({"x": np.arange(4, dtype=np.int8), "y": b"abc"})
    for length in range(1, len(data)):
        with pytest.raises(WireError, match="the stream ended in the"):
            unpack(data[:length])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data):
    with pytest.raises(WireError):
        unpack(data, limits=SMALL)


@settings(max_examples=300, deadline=None)
@given(
    sizes=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)),
    rest=st.binary(max_size=200),
)
def test_random_sizes_never_make_the_reader_take_more_than_arrives(sizes, rest):
    stream = io.BytesIO(struct.pack("<4sIQ", MAGIC, *sizes) + rest)

    def read(size):
        """As a socket would, with room for all that is asked for."""
        assert size <= 1 << 20
        return stream.read(size)

    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            read_frame(read, limits=Limits(header=1 << 32, blob=1 << 62, frame=1 << 63))
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


VALID = pack(
    {
        "d": Decision(np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(2, bool)),
        "s": [None, 1.5, float("nan"), b"snapshot"],
    }
)


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=6)
)
@pytest.mark.filterwarnings("ignore")
def test_damaged_frames_are_refused_or_read_but_never_crash(edits):
    data = bytearray(VALID)
    for position, byte in edits:
        data[position] = byte
    with contextlib.suppress(WireError):
        unpack(bytes(data), limits=SMALL)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("abn", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["array", "bytes", "dict", "float", "record", "Decision", "x"]),
            inner,
            max_size=2,
        )
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(json_values, st.lists(st.integers(-1, 9), max_size=2))
def test_any_json_header_is_refused_or_read_but_never_crashes(tree, sizes):
    with contextlib.suppress(WireError):
        unpack(raw_frame({"value": tree, "sizes": sizes}, b"\x00" * max(0, sum(sizes))))


def npy_text(text):
    """An npy blob whose header is this text."""
    text = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def shaped(shape, descr="<f4"):
    return npy_text(f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}")


HUGE = 2**62
BAD_FRAMES = {
    "wrong magic": (raw_frame({}, magic=b"HTTP"), "no frame"),
    "header over the limit": (raw_frame({}, header_size=1 << 30), "header of .* exceeds"),
    "frame over the limit": (raw_frame({}, body_size=1 << 40), "frame of .* exceeds"),
    "array over the limit": (
        raw_frame({"value": None, "sizes": [SMALL.blob + 1]}, bytes(SMALL.blob + 1)),
        "array of .* exceeds",
    ),
    "too many arrays": (raw_frame({"value": None, "sizes": [0] * 9}), "exceed the limit of 8"),
    "sizes do not add up": (raw_frame({"value": None, "sizes": [3]}, b"ab"), "announces 2"),
    "header is not JSON": (raw_frame(b"{"), "not readable"),
    "header is not UTF-8": (raw_frame(b"\xff\xfe"), "not readable"),
    "header is NaN": (raw_frame(b'{"value": NaN, "sizes": []}'), "not JSON"),
    "header nests without end": (raw_frame(b"[" * 4000), "not readable"),
    "header is a list": (raw_frame([]), "exactly the keys"),
    "header has another key": (raw_frame({"value": 1, "sizes": [], "x": 1}), "exactly the keys"),
    "a size is negative": (raw_frame({"value": 1, "sizes": [-1]}), "byte counts"),
    "a size is a bool": (raw_frame({"value": 1, "sizes": [True]}, b"x"), "byte counts"),
    "nested too deeply": (raw_frame({"value": [[[[[[[1]]]]]]], "sizes": []}), "too deeply"),
    "no such array": (raw_frame({"value": {"array": 0}, "sizes": []}), "no array 0"),
    "one blob twice": (
        raw_frame({"value": [{"bytes": 0}, {"bytes": 0}], "sizes": [1]}, b"x"),
        "array 0 is used twice",
    ),
    "array index is text": (raw_frame({"value": {"array": "0"}, "sizes": []}), "no array '0'"),
    "unknown tag": (raw_frame({"value": {"pickle": 0}, "sizes": []}), "unknown entry 'pickle'"),
    "two tags": (raw_frame({"value": {"a": 0, "b": 0}, "sizes": []}), "one key"),
    "unknown float": (raw_frame({"value": {"float": "1e5"}, "sizes": []}), "unknown entry"),
    "unknown record": (
        raw_frame({"value": {"record": ["Popen", {}]}, "sizes": []}),
        "unknown record 'Popen'",
    ),
    "record without a name": (raw_frame({"value": {"record": {}}, "sizes": []}), "a name"),
    "record lacks fields": (
        raw_frame({"value": {"record": ["Decision", {"acting": 1}]}, "sizes": []}),
        "does not have the fields",
    ),
    "dict is a list": (raw_frame({"value": {"dict": [1]}, "sizes": []}), "named entries"),
    "pickled array": (array_frame(npy_blob(np.array([{}], object))), "dtype object"),
    "structured array": (array_frame(npy_blob(np.zeros(2, "i4,i4"))), "not accepted"),
    "text array": (array_frame(npy_blob(np.array(["ab"]))), "not accepted"),
    "big-endian array": (array_frame(npy_blob(np.zeros(2, ">i4"))), "not accepted"),
    "npy of version 2": (array_frame(npy_blob(np.zeros(2), (2, 0))), "version 1.0"),
    "no npy at all": (array_frame(b"0123456789" * 20), "not readable"),
    "empty blob": (array_frame(b""), "not readable"),
    "npy header is code": (array_frame(npy_text("__import__('os')")), "not readable"),
    "npy shorter than its shape": (array_frame(npy_blob(np.zeros(9))[:-1]), "71 bytes of data"),
    "npy longer than its shape": (array_frame(npy_blob(np.zeros(2)) + b"x"), "17 bytes of data"),
    "npy of gigantic shape": (array_frame(shaped((HUGE, HUGE))), "0 bytes of data"),
    "empty npy of gigantic shape": (array_frame(shaped((0, HUGE, HUGE))), "float32"),
    "npy of negative shape": (array_frame(shaped((-1, 0))), "bytes of data"),
    "npy of too many axes": (array_frame(shaped((0,) * 33 + (0,) * 40)), "array|readable"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_bad_frames_are_named(name):
    data, message = BAD_FRAMES[name]
    with pytest.raises(WireError, match=message):
        unpack(data, limits=SMALL)


UNSENDABLE = {
    "plain tuple": ((1, 2), TypeError, "tuple"),
    "object array": (np.array([{}], object), TypeError, "dtype object"),
    "text array": (np.array(["a"]), TypeError, "dtype <U1"),
    "long double": (np.zeros(1, np.longdouble), TypeError, "dtype"),
    "keys that are no text": ({1: 2}, TypeError, "must be strings"),
    "a function": (print, TypeError, "builtin_function"),
    "a set": ({1}, TypeError, "set"),
    "too deep": ([[[[[[1]]]]]], WireError, "too deeply"),
    "too large": (np.zeros(SMALL.blob, np.uint8), WireError, "exceeds the limit"),
    "too many": ([b""] * 9, WireError, "exceed the limit of 8"),
    "long header": (["x" * 5000], WireError, "header"),
}


@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_cannot_travel_is_refused_by_the_sender(name):
    value, kind, message = UNSENDABLE[name]
    with pytest.raises(kind, match=message):
        pack(value, SMALL)
