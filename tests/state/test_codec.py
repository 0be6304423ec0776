"""Claims about the codec: every value that it takes comes back the same, and all others are refused by name."""

import collections
import contextlib
import copy
import datetime as dt
import enum
import json
import math
import os
import pathlib
import struct
import sys
import typing
import uuid
import warnings
import zoneinfo
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.errors import CorruptCheckpoint, SamestepError, StateMismatch, UnsupportedValue
from samestep.state.codec import Encoder, decode, encode
from samestep.state.decoding import Decoder
from samestep.state.in_place import assign_in_place


class Color(enum.Enum):
    RED = 1
    GREEN = 2


class Level(enum.IntEnum):
    LOW = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(typing.NamedTuple):
    left: object
    right: object


def through_json(value):
    """Encode, write as JSON text, read and decode."""
    tree, tensors = encode(value, "value")
    return decode(json.loads(json.dumps(tree)), tensors)


def bits(value):
    return struct.pack(">d", value)


def same(left, right):  # noqa: PLR0911  (one line a type)
    """Compare exactly: types, order, NaN payloads, the sign of zero, strides."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return bits(left) == bits(right)
    if isinstance(left, complex):
        return bits(left.real) == bits(right.real) and bits(left.imag) == bits(right.imag)
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.stride() == right.stride() and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return (left.dtype, left.shape, left.strides) == (right.dtype, right.shape, right.strides) and (
            left.tobytes() == right.tobytes()
        )
    if isinstance(left, Decimal):
        return repr(left) == repr(right)
    if isinstance(left, np.generic):
        return left.dtype == right.dtype and left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(a, b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, (list, tuple, collections.deque)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


texts = st.text(st.characters(exclude_categories=())) | st.text()
hashable_leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=8)
    | st.dates()
    | st.timedeltas()
    | st.uuids()
    | st.fractions()
    | st.sampled_from([Color.RED, Level.LOW, Rights.READ | Rights.WRITE, Rights(0), torch.float8_e4m3fn])
    | st.sampled_from([torch.Size([2, 3]), torch.device("cuda", 1), torch.channels_last, torch.strided])
)
leaves = (
    hashable_leaves
    | st.floats()
    | st.complex_numbers()
    | st.decimals()
    | st.datetimes(timezones=st.none() | st.timezones() | st.just(dt.timezone(dt.timedelta(hours=1), "CET")))
    | st.times(timezones=st.none() | st.just(dt.UTC))
    | st.binary(max_size=8).map(bytearray)
    | st.sampled_from([np.float64(0.1), np.int8(-1), np.bool_(1), np.str_("é"), np.datetime64("2026-01-02")])
    | st.builds(pathlib.PurePosixPath, st.text(max_size=3))
)
keys = hashable_leaves | st.tuples(hashable_leaves, hashable_leaves)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$kind", "$tensor", "$", "a", "a.b"]), inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict)
        | st.dictionaries(keys, inner, max_size=3).map(lambda d: collections.defaultdict(list, d))
        | st.sets(hashable_leaves, max_size=3)
        | st.frozensets(hashable_leaves, max_size=3)
        | st.builds(collections.deque, st.lists(inner, max_size=3), st.none() | st.integers(3, 9))
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(values)
def test_every_value_round_trips_through_json(value):
    """Any nesting of supported values comes back equal in value, type and order."""
    assert same(value, through_json(value))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_every_float_round_trips_bit_by_bit(pattern):
    """All bit patterns of a float are kept: NaN payloads, infinities, subnormal numbers, the sign of zero."""
    value = struct.unpack(">d", struct.pack(">Q", pattern))[0]
    assert bits(through_json(value)) == bits(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.fixed_dictionaries(
            {
                "$kind": st.sampled_from(["tuple", "dict", "enum", "ndarray", "ndarray.bytes", "deque", "set", "int"])
                | st.sampled_from(["numpy.scalar", "numpy.dtype", "datetime", "path", "torch.dtype", "namedtuple"]),
                "value": inner,
            },
            optional={
                "class": st.sampled_from(["os:system", "builtins:eval", "test_codec:Color", "samestep:Run"]),
                "fields": inner,
                "maxlen": inner,
                "factory": inner,
            },
        )
        | st.fixed_dictionaries({"$tensor": st.sampled_from(["w", "x"])})
        | st.fixed_dictionaries({"$same": st.integers(0, 2) | inner})
        | st.fixed_dictionaries({"$shared": st.integers(0, 2) | inner, "value": inner})
        | st.fixed_dictionaries(
            {
                "$view": st.fixed_dictionaries(
                    {
                        "base": st.just("w"),
                        "dtype": st.sampled_from(["float32", "uint8", "save", ""]),
                        "shape": st.lists(st.integers(-5, 2**70), max_size=3),
                        "strides": st.lists(st.integers(-5, 2**70), max_size=3),
                        "offset": st.integers(-5, 2**70),
                    }
                )
            }
        )
    ),
    max_leaves=10,
)


@settings(max_examples=500, deadline=None)
@given(json_values)
def test_hostile_trees_give_one_clear_error(tree):
    """Any JSON either decodes or raises a SamestepError; nothing else escapes."""
    with contextlib.suppress(SamestepError):
        decode(tree, {"w": torch.zeros(3)})


def test_views_beyond_their_base_are_refused():
    """A view that reaches beyond its base is refused; torch would enlarge the memory and show what is there."""
    for offset, shape, strides in (
        (0, [4], [1]),
        (2, [2], [1]),
        (0, [2, 2], [2, 1]),
        (0, [2**40], [1]),
        (3, [1], [1]),
    ):
        view = {"base": "w", "dtype": "float32", "shape": shape, "strides": strides, "offset": offset}
        with pytest.raises(CorruptCheckpoint, match="cannot be read"):
            decode({"$view": view}, {"w": torch.zeros(3)})


def test_deep_trees_are_refused():
    """A tree of 100,000 levels is refused, not followed until the stack breaks."""
    tree = []
    for _ in range(100_000):
        tree = [tree]
    with pytest.raises(CorruptCheckpoint, match="levels deep"):
        decode(tree, {})


def test_decoding_imports_nothing():
    """A tree that names a module which is not loaded is refused and the module stays unloaded."""
    sys.modules.pop("antigravity", None)
    for name in ("antigravity:Flag", "samestep:DataLoader.x", "os:system"):
        with pytest.raises(StateMismatch, match="not loaded"):
            decode({"$kind": "enum", "class": name, "value": ["A"]}, {})
    assert "antigravity" not in sys.modules


def test_dict_order_and_dollar_keys():
    """Dicts keep their order, and a user's key that begins with "$" stays a key."""
    value = {"b": 1, "a": {"$tensor": "x", "$kind": "tuple", "value": []}}
    assert list(through_json(value)) == ["b", "a"]
    assert through_json(value) == value


def test_plain_state_is_readable_json():
    """Dicts with text keys, lists and simple values are written as themselves."""
    value = {"rate": 0.1, "steps": [1, 2], "name": "é", "none": None, "yes": True, "zero": -0.0}
    assert encode(value, "x") == (value, {})


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**5000),
        math.nan,
        -math.inf,
        complex(-0.0, math.nan),
        "\ud800",
        {"\ud800": 1},
        range(0, 2**70, 3),
        slice(None, 3, None),
        Decimal("sNaN123"),
        Decimal("-0.00"),
        Fraction(1, 3),
        Fraction(2**20_000, 3),
        uuid.UUID(int=2**127 + 5),
        dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Paris")),
        pathlib.Path(os.fsdecode(b"/data/\xff")),
        pathlib.PureWindowsPath("C:/x"),
        collections.Counter({"a": 0, "b": -1, "c": 1.5}),
        collections.defaultdict(None, {1: 2}),
        collections.deque([1, 2], maxlen=2),
        np.dtype([("a", "<f4", (2, 2)), ("b", ">i8"), ("c", [("d", "S3")])]),
        np.longdouble(1) / 3,
        np.array([(1.5, 2)], dtype=[("a", "<f4"), ("b", ">i8")])[0],
        np.str_(""),
        np.str_("a\0"),
        np.bytes_(b"\0"),
        np.timedelta64(3, "ns"),
        torch.bfloat16,
        torch.Size([]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_single_values_round_trip(value):
    """The awkward values, one by one, come back the same."""
    assert same(value, through_json(value))


def test_a_set_of_numbers_keeps_its_order_of_iteration():
    """Sets of numbers iterate as before; sets of texts are written in one order in every process."""
    value = {8}
    value.add(0)
    assert list(through_json(value)) == list(value) == [8, 0]
    assert encode({"b", "a"}, "x")[0]["value"] == ["a", "b"]


@pytest.mark.parametrize("members", [[6, 7, 14], [-1, -3, -34], [8, 0], [0.5, 2, 8], range(1000), []])
def test_sets_that_their_own_order_does_not_rebuild_keep_it(members):
    """A set made from the order of {6, 7, 14} iterates otherwise: members are added in an order that gives it."""
    value = set(members)
    assert list(through_json(value)) == list(value)
    assert list(assign_in_place({3}, through_json(value))) == list(value)


def test_a_set_that_has_shrunk_is_named():
    """A set whose table remembers lost members iterates otherwise once it is built again: its path is named once."""
    value = set(range(1000))
    for each in range(990):
        value.discard(each)
    assert list(set(list(value))) != list(value)  # noqa: C414  (built anew from its order)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            assert set(encode({"ids": value}, "run.state")[0]["ids"]["value"]) == value
    assert [str(each.message).split(" is a set")[0] for each in caught] == ["run.state.ids"]


@pytest.mark.parametrize(
    "dtype", ["?", "u1", "<u2", "<u4", "<u8", "i1", "<f2", "<f4", "<f8", "<c8", ">f4", "<M8[s]", "U3"]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_keep_dtype_and_order(dtype, order):
    """Arrays of every kind of dtype come back with their bytes, dtype and memory order."""
    array = np.arange(6).reshape(2, 3).astype(dtype).copy(order=order)
    back = through_json({"array": array})["array"]
    assert same(array, back)
    assert back.flags.writeable


@pytest.mark.parametrize(
    "array", [np.zeros((0, 3)), np.array(1.5), np.arange(6)[::-2], np.zeros((0,), ">f4")], ids=repr
)
def test_odd_arrays(array):
    """Empty, 0-dimensional, reversed and read-only arrays come back with equal elements."""
    array.flags.writeable = False
    back = through_json(array)
    assert back.tobytes() == array.tobytes()
    assert (back.dtype, back.shape) == (array.dtype, array.shape)


def test_tensor_names_are_the_path():
    """A state dict gives exactly its own names; other paths are joined with dots; collisions get a suffix."""
    a, b, c = torch.zeros(1), torch.ones(1), torch.ones(2)
    assert list(encode({"layer.weight": a}, "model")[1]) == ["layer.weight"]
    assert list(encode({"a.b": a, "a": {"b": b}, "l": [(c,)]}, "x")[1]) == ["a.b", "a.b#2", "l.0.0"]
    assert list(encode(a, "x")[1]) == ["value"]
    assert list(encode({"__metadata__": a}, "x")[1]) == ["__metadata__#2"]


def test_tied_tensors_are_one():
    """One tensor at two places is written once and is one object after decoding."""
    weight = torch.nn.Parameter(torch.randn(2, 2))
    tree, tensors = encode({"a": weight, "b": weight.detach()}, "x")
    back = decode(tree, tensors)
    assert list(tensors) == ["a"]
    assert back["a"] is back["b"]
    assert type(back["a"]) is torch.Tensor


def test_overlapping_views_stay_aliased():
    """Views that share elements share them again after decoding: writing to one shows in the other."""
    flat = torch.arange(10.0)
    back = through_json({"left": flat[2:7], "right": flat[5:9], "alone": flat[9:]})
    assert torch.equal(back["left"], flat[2:7])
    assert torch.equal(back["right"], flat[5:9])
    back["left"][4] = 100
    assert back["right"][1] == 100
    _, tensors = encode({"left": flat[2:7], "right": flat[5:9], "alone": flat[9:]}, "x")
    assert tensors["alone"].numel() == 1
    assert sum(t.numel() for t in tensors.values()) <= 1 + 9


def test_a_view_of_a_whole_tensor_uses_its_name():
    """A view of a tensor that is itself stored is written as a view of it, not twice."""
    whole = torch.arange(6.0).reshape(2, 3)
    tree, tensors = encode({"row": whole[1], "whole": whole}, "x")
    assert list(tensors) == ["whole"]
    back = decode(tree, tensors)
    back["whole"][1, 0] = -1
    assert back["row"][0] == -1


def test_views_of_other_dtypes_stay_aliased():
    """The real view of a complex tensor and the tensor share memory after decoding."""
    value = torch.randn(5, dtype=torch.complex64)[1:]
    back = through_json({"c": value, "r": torch.view_as_real(value)})
    assert torch.equal(back["c"], value)
    back["r"][0, 0] = 7
    assert back["c"][0].real == 7


def test_a_view_writes_its_own_elements_only():
    """A small view of a large tensor is written small, also when a neighbour that shares nothing lies between."""
    large = torch.zeros(1000, 1000)
    _, tensors = encode({"a": large[:, 0], "b": large[:, 1], "c": large[3, 5:6]}, "x")
    assert sorted(t.numel() for t in tensors.values()) == [1, 1000, 1000]


def test_strides_and_pending_operations():
    """Strides survive, expanded tensors too, and conjugate and negative views come back with their values."""
    tensors = [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3, 1).expand(3, 4),
        torch.randn(4, 6)[:, ::2],
    ]
    for tensor in tensors:
        assert same(through_json({"t": tensor})["t"], tensor)
    conjugate = torch.randn(3, dtype=torch.complex64).conj()
    assert torch.equal(through_json(conjugate), conjugate)
    assert torch.equal(through_json(conjugate.imag), conjugate.imag)


def test_decoded_values_do_not_share_memory_with_the_snapshot():
    """Using what was decoded does not change the snapshot."""
    tree, tensors = encode({"t": torch.zeros(2), "a": np.zeros(2)}, "x")
    back = decode(tree, tensors)
    back["t"].add_(1)
    back["a"] += 1
    assert all(tensor.sum() == 0 for tensor in tensors.values())


def test_encoded_tensors_are_live():
    """The tensors of an encoded value are references, not copies."""
    live = torch.zeros(2)
    _, tensors = encode({"t": live}, "x")
    live.add_(1)
    assert tensors["t"].sum() == 2


class Custom:
    pass


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            {"state": {"layer.weight": {"hook": len.__call__}}},
            'optimizer.state["layer.weight"].hook is a method-wrapper',
        ),
        ({"hook": lambda: 0}, "optimizer.hook is a function"),
        ({"groups": [{"x": Custom()}]}, r"optimizer.groups\[0\].x is a Custom"),
        ({"kind": Custom}, "optimizer.kind is the class Custom"),
        ({"sparse": torch.eye(2).to_sparse()}, "optimizer.sparse is not strided"),
        ({"meta": torch.empty(2, device="meta")}, "optimizer.meta is on the meta device"),
        ({"odd": np.array([object()])}, "optimizer.odd has the NumPy dtype object"),
        ({"masked": np.ma.array([1])}, "optimizer.masked is a MaskedArray"),
        ({torch.zeros(1): 1}, "optimizer has a tensor as a key"),
        ({"d": collections.defaultdict(lambda: 0)}, "optimizer.d is a defaultdict"),
        ({"lazy": torch.nn.LazyLinear(2).weight}, "optimizer.lazy has no shape yet"),
        ({"generator": torch.Generator()}, "optimizer.generator is a Generator"),
    ],
    ids=lambda value: "" if not isinstance(value, str) else value,
)
def test_the_rest_is_refused_by_its_path(value, sentence):
    """What cannot be stored exactly is refused with its path and what it is."""
    with pytest.raises(UnsupportedValue, match=sentence.replace('"]', '"\\]').replace('["', '\\["')):
        encode(value, "optimizer")


def test_a_value_that_contains_itself_is_refused_by_its_path():
    """A recursive container is an error that says where the recursion is."""
    value = {"a": []}
    value["a"].append(value)
    with pytest.raises(UnsupportedValue, match=r"x\.a\[0\] contains itself"):
        encode(value, "x")


@pytest.mark.parametrize(
    "container",
    [
        [1, []],
        {"a": 1},
        {1: 2},
        {1, 2},
        collections.deque([1]),
        bytearray(b"ab"),
        collections.OrderedDict(a=1),
        collections.Counter("aab"),
        collections.defaultdict(list, a=[1]),
        [],
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_container_at_several_places_is_one_again(container):
    """`state.a = state.b = []` is one list after decoding too, wherever it lies and whatever it holds."""
    value = {"a": container, "b": (1, container), "c": [Pair(container, 0)], "d": copy.copy(container)}
    decoded = through_json(value)
    assert decoded["a"] is decoded["b"][1] is decoded["c"][0].left
    assert decoded["d"] is not decoded["a"]
    assert same(decoded["a"], container)


def test_a_container_inside_a_repeated_tuple_is_one_again():
    """A tuple that lies twice in a value holds the same list twice."""
    pair = ([], 1)
    first, second = through_json([pair, pair])
    assert first[0] is second[0]


def test_plain_trees_name_only_what_is_shared():
    """A container at one place stays plain JSON; a shared one is numbered at its first place."""
    log = [1]
    assert encode({"a": log, "b": log, "c": [1]}, "x")[0] == {
        "a": {"$shared": 0, "value": [1]},
        "b": {"$same": 0},
        "c": [1],
    }


def test_several_values_of_one_encoder_have_numbers_of_their_own():
    """Values that are encoded one by one and decoded one by one do not mix up what they share."""
    encoder, one, two = Encoder(), [1], [2]
    trees = [encoder.encode([each, each], "x") for each in (one, two)]
    assert encoder.encode(one, "x") == [1]
    decoder = Decoder({})
    assert [decoder.decode(each) for each in trees] == [[[1], [1]], [[2], [2]]]


@pytest.mark.parametrize(
    "tree",
    [
        [{"$same": 0}],
        [{"$same": 0}, {"$shared": 0, "value": []}],
        [{"$shared": 0, "value": [{"$same": 0}]}],
        [{"$shared": 0, "value": []}, {"$shared": 0, "value": []}],
        [{"$shared": 0, "value": [{"$shared": 0, "value": []}]}, {"$same": 1}],
        [{"$shared": 0, "value": 3}],
        [{"$shared": "0", "value": []}],
        [{"$shared": [], "value": []}],
        [{"$shared": True, "value": []}],
        [{"$shared": 0}],
        [{"$same": None}],
    ],
)
def test_references_that_lead_nowhere_are_refused(tree):
    """Unknown, forward, circular and doubled references are damage, not guessed at."""
    with pytest.raises(CorruptCheckpoint):
        decode(tree, {})


def test_several_values_share_one_set_of_names():
    """An Encoder gives tensors of several values different names."""
    encoder = Encoder()
    encoder.encode({"a": torch.zeros(1)}, "x")
    encoder.encode({"a": torch.zeros(1)}, "y")
    assert list(encoder.finish()) == ["a", "a#2"]


def test_the_device_of_a_tensor_is_restored_where_there_is_one():
    """A tensor saved from a device that is absent here comes back on the CPU."""
    tree = {"$tensor": "w", "device": "cuda" if not torch.cuda.is_available() else "xpu"}
    assert decode(tree, {"w": torch.ones(1)}).device.type == "cpu"
