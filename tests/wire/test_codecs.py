"""Compression bombs: what comes out is bounded, and so is memory."""

import gzip
import resource
import struct
import subprocess
import sys
import zlib

import cramjam
import pytest

from headrace.core.errors import ApiError, ErrorCode
from headrace.wire import codecs, layout

GIB = 1 << 30
MIB = 1 << 20
CODECS = (layout.GZIP, layout.SNAPPY, layout.LZ4, layout.ZSTD)

OPEN_A_BOMB = """
import resource, sys
from headrace.core.errors import ApiError, ErrorCode
from headrace.wire import codecs

codec, path, max_bytes = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
bomb = open(path, "rb").read()
codecs.decompress(codec, codecs.compress(codec, b"warm " * 1000), max_bytes)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    codecs.decompress(codec, bomb, max_bytes)
except ApiError as error:
    assert error.code is ErrorCode.corrupt_message
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def gzip_bomb():
    squeeze = zlib.compressobj(1, zlib.DEFLATED, 31)
    zeros = bytes(16 * MIB)
    return b"".join([*(squeeze.compress(zeros) for _ in range(GIB // len(zeros))), squeeze.flush()])


def stream_bomb(squeeze):
    zeros = bytes(16 * MIB)
    for _ in range(GIB // len(zeros)):
        squeeze.compress(zeros)
    return bytes(squeeze.finish())


def snappy_bomb():
    block = bytes(cramjam.snappy.compress_raw(bytes(32 * 1024)))
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * (GIB // (32 * 1024))


def raw_snappy_bomb():
    return bytes(cramjam.snappy.compress_raw(bytes(GIB // 4)))


BOMBS = {
    "gzip": (layout.GZIP, gzip_bomb),
    "snappy": (layout.SNAPPY, snappy_bomb),
    "raw snappy": (layout.SNAPPY, raw_snappy_bomb),
    "lz4": (layout.LZ4, lambda: stream_bomb(cramjam.lz4.Compressor())),
    "zstd": (layout.ZSTD, lambda: stream_bomb(cramjam.zstd.Compressor())),
}


@pytest.mark.process
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_of_a_gibibyte_takes_only_the_memory_that_is_allowed(name, tmp_path):
    codec, make = BOMBS[name]
    path = tmp_path / "bomb"
    path.write_bytes(make())
    max_bytes = 16 * MIB

    def no_more_than_a_gibibyte():
        resource.setrlimit(resource.RLIMIT_AS, (GIB, GIB))

    done = subprocess.run(
        [sys.executable, "-c", OPEN_A_BOMB, str(codec), str(path), str(max_bytes)],
        preexec_fn=no_more_than_a_gibibyte,
        capture_output=True,
        text=True,
        check=True,
    )
    grown_kib = int(done.stdout)
    assert grown_kib * 1024 < 4 * max_bytes


@pytest.mark.parametrize("codec", CODECS)
def test_exactly_the_allowed_bytes_come_out_and_not_one_more(codec):
    for size in (1000, 100_000, 3 * MIB):
        squeezed = codecs.compress(codec, bytes(size))
        assert codecs.decompress(codec, squeezed, size) == bytes(size)
        with pytest.raises(ApiError):
            codecs.decompress(codec, squeezed, size - 1)


def test_uncompressed_bytes_are_bounded_too():
    with pytest.raises(ApiError):
        codecs.decompress(layout.NONE, bytes(11), 10)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"\x01", b"garbage" * 10, b"\xff" * 100])
def test_garbage_is_corrupt(codec, data):
    with pytest.raises(ApiError) as caught:
        codecs.decompress(codec, data, MIB)
    assert caught.value.code is ErrorCode.corrupt_message


def test_an_unknown_codec_is_unsupported():
    for work in (lambda: codecs.decompress(7, b"", MIB), lambda: codecs.compress(7, b"")):
        with pytest.raises(ApiError) as caught:
            work()
        assert caught.value.code is ErrorCode.unsupported_compression_type


def test_gzip_members_are_joined_but_not_without_end():
    member = gzip.compress(b"x")
    assert codecs.decompress(layout.GZIP, member * 16, MIB) == b"x" * 16
    with pytest.raises(ApiError, match="too many members"):
        codecs.decompress(layout.GZIP, member * 17, MIB)


def test_a_snappy_block_cannot_claim_more_than_it_can_hold():
    with pytest.raises(ApiError, match="claims more"):
        codecs.decompress(layout.SNAPPY, b"\xff\xff\xff\x0f\x00", 64 * MIB)
