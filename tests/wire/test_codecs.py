"""Compression bombs: what comes out is bounded, and so is memory."""

import gzip
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
ZEROS = bytes(16 * MIB)
CODECS = (layout.GZIP, layout.SNAPPY, layout.LZ4, layout.ZSTD)

OPEN_A_BOMB = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from headrace.core.errors import ApiError, ErrorCode
from headrace.wire import codecs

def peak_kib():
    # Not ru_maxrss: a process inherits that from the one that has started it.
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

codec, path, max_bytes = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
bomb = open(path, "rb").read()
codecs.decompress(codec, codecs.compress(codec, b"warm " * 1000), max_bytes)
before = peak_kib()
try:
    codecs.decompress(codec, bomb, max_bytes)
except ApiError as error:
    assert error.code is ErrorCode.corrupt_message
    print(peak_kib() - before)
"""


def gzip_bomb():
    """One member; after a full flush the same bytes open to the same zeros again."""
    squeeze = zlib.compressobj(1, zlib.DEFLATED, 31)
    first, again = (squeeze.compress(ZEROS) + squeeze.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + again * (GIB // len(ZEROS) - 1) + squeeze.flush()


def stream_bomb(squeeze):
    pieces = []
    for _ in range(2):
        squeeze.compress(ZEROS)
        pieces.append(bytes(squeeze.flush()))
    return pieces[0] + pieces[1] * (GIB // len(ZEROS) - 1) + bytes(squeeze.finish())


def snappy_bomb():
    block = bytes(cramjam.snappy.compress_raw(bytes(32 * 1024)))
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * (GIB // (32 * 1024))


def raw_snappy_bomb():
    return bytes(cramjam.snappy.compress_raw(bytes(GIB // 4)))


BOMBS = {
    "gzip": (layout.GZIP, gzip_bomb),
    "snappy": (layout.SNAPPY, snappy_bomb),
    "raw snappy": (layout.SNAPPY, raw_snappy_bomb),
    "lz4": (layout.LZ4, lambda: stream_bomb(cramjam.lz4.Compressor(content_checksum=False))),
    "zstd": (layout.ZSTD, lambda: stream_bomb(cramjam.zstd.Compressor())),
}


@pytest.mark.process
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_of_a_gibibyte_takes_only_the_memory_that_is_allowed(name, tmp_path):
    codec, make = BOMBS[name]
    path = tmp_path / "bomb"
    path.write_bytes(make())
    max_bytes = 16 * MIB
    done = subprocess.run(
        [sys.executable, "-c", OPEN_A_BOMB, str(codec), str(path), str(max_bytes)],
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
