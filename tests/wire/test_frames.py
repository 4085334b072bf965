"""The splitter: whole frames out, however the bytes were cut."""

import itertools
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ProtocolError
from headrace.wire.frames import FrameSplitter


def framed(*frames):
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def fed(splitter, data, cuts):
    frames = []
    edges = [0, *sorted(cuts), len(data)]
    for start, stop in itertools.pairwise(edges):
        frames += splitter.feed(data[start:stop])
    return frames


@given(st.data())
def test_frames_come_out_whole_however_they_were_cut(data):
    frames = data.draw(st.lists(st.binary(min_size=1, max_size=9000), max_size=6))
    stream = framed(*frames)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    splitter = FrameSplitter()
    assert fed(splitter, stream, cuts) == frames
    assert splitter.pending_bytes == 0


def test_one_byte_at_a_time_is_enough():
    frames = [b"first", b"second" * 1000, b"3"]
    stream = framed(*frames)
    assert fed(FrameSplitter(), stream, range(1, len(stream))) == frames


@given(st.lists(st.binary(max_size=40), max_size=10), st.integers(1, 100))
def test_arbitrary_bytes_give_frames_or_a_protocol_error(pieces, limit):
    splitter = FrameSplitter(limit)
    try:
        for piece in pieces:
            assert all(0 < len(frame) <= limit for frame in splitter.feed(piece))
    except ProtocolError:
        pass


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 101, 2**31 - 1])
def test_a_bad_length_is_refused_at_once(length):
    with pytest.raises(ProtocolError, match="1 to 100"):
        FrameSplitter(100).feed(struct.pack(">i", length))


def test_the_frames_before_a_bad_length_are_lost_with_the_connection():
    with pytest.raises(ProtocolError):
        FrameSplitter(100).feed(framed(b"good") + b"\xff\xff\xff\xff")


@pytest.mark.parametrize(
    ("greeting", "word"),
    [(b"GET / HTTP/1.1\r\n\r\n", "HTTP"), (b"POST /x", "HTTP"), (b"\x16\x03\x01\x02\x00\x01\x00", "TLS")],
)
def test_other_protocols_are_named(greeting, word):
    with pytest.raises(ProtocolError, match=word):
        FrameSplitter(100 * 1024 * 1024).feed(greeting)


def test_a_limit_that_is_raised_holds_from_the_next_frame_on():
    splitter = FrameSplitter(10)
    splitter.feed(framed(b"x" * 10))
    splitter.max_frame_bytes = 20
    assert splitter.feed(framed(b"y" * 20)) == [b"y" * 20]


def test_a_frame_of_exactly_the_limit_passes():
    assert FrameSplitter(7).feed(framed(b"1234567")) == [b"1234567"]


def test_memory_follows_the_bytes_that_came_and_not_the_length_announced():
    splitter = FrameSplitter(100 * 1024 * 1024)
    tracemalloc.start()
    splitter.feed(struct.pack(">i", 100 * 1024 * 1024))
    for _ in range(20_000):
        splitter.feed(b"drip")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert splitter.pending_bytes == 80_000
    assert peak < 4 * 80_000


def test_a_large_frame_in_many_pieces_is_not_copied_again_and_again():
    splitter = FrameSplitter(100 * 1024 * 1024)
    piece = bytes(64 * 1024)
    count = 256
    splitter.feed(struct.pack(">i", count * len(piece)))
    tracemalloc.start()
    for _ in range(count - 1):
        assert splitter.feed(piece) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 1024  # the pieces themselves are kept, not joined
    assert splitter.feed(piece) == [piece * count]


@given(st.data())
def test_a_frame_is_announced_once_if_it_does_not_come_in_one_piece(data):
    frames = data.draw(st.lists(st.binary(min_size=1, max_size=300), max_size=5))
    stream = framed(*frames)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10))
    announced = []
    splitter = FrameSplitter(on_begun=lambda head, length: announced.append((head, length)))
    assert fed(splitter, stream, cuts) == frames
    whole = [(frame[:4], len(frame)) for frame in frames]
    assert all(each in whole for each in announced)
    assert len(announced) <= len(frames)


def test_a_frame_is_announced_as_soon_as_its_first_four_bytes_are_there():
    announced = []
    splitter = FrameSplitter(on_begun=lambda head, length: announced.append((head, length)))
    for byte in framed(b"abcdefgh")[:7]:
        splitter.feed(bytes([byte]))
    assert announced == []
    splitter.feed(b"d")
    assert announced == [(b"abcd", 8)]
    splitter.feed(b"efg")
    assert announced == [(b"abcd", 8)]
    assert splitter.pending_bytes == 7
