"""DeviceFile on host memory; on device memory it is in test_gpu.py."""

import errno
import io
import shutil
from typing import Any

import numpy as np
import pytest

from lamina import tensor
from lamina.runtime import Device, DeviceFile, from_host, memset, to_host

CPU = Device("cpu")
pytestmark = pytest.mark.feature("F032")


def file(text: bytes = b"0123456789", **options: Any) -> DeviceFile:
    return DeviceFile(from_host(text, CPU), **options)


def test_reads_to_the_end_and_then_nothing() -> None:
    f = file()
    assert f.read(4) == b"0123"
    assert f.tell() == 4
    assert f.read(100) == b"456789"
    assert f.read(1) == b""
    target = bytearray(3)
    assert f.readinto(target) == 0
    f.seek(8)
    assert f.readinto(target) == 2
    assert target == b"89\0"
    f.seek(0)
    assert f.read() == f.readall() + b"0123456789"


def test_writes_in_place() -> None:
    f = file()
    f.seek(3)
    assert f.write(b"abc") == 3
    assert f.tell() == 6
    assert f.write(b"") == 0
    f.seek(0)
    assert f.readall() == b"012abc6789"


def test_a_write_past_the_end_writes_nothing() -> None:
    f = file()
    f.seek(8)
    with pytest.raises(OSError, match="write of 3 bytes at 8 exceeds a buffer of 10 bytes") as caught:
        f.write(b"abc")
    assert caught.value.errno == errno.ENOSPC
    assert f.tell() == 8
    f.seek(0)
    assert f.readall() == b"0123456789"


def test_seeks_from_everywhere() -> None:
    f = file()
    assert f.seek(-3, io.SEEK_END) == 7
    assert f.seek(2, io.SEEK_CUR) == 9
    assert f.seek(20) == 20
    assert f.read(1) == b""
    with pytest.raises(OSError, match="exceeds"):
        f.write(b"a")
    with pytest.raises(ValueError, match="is before the beginning"):
        f.seek(-1)
    with pytest.raises(ValueError, match="whence"):
        f.seek(0, 7)
    assert f.tell() == 20


def test_keeps_its_size() -> None:
    with pytest.raises(io.UnsupportedOperation, match="fixed"):
        file().truncate(3)
    assert len(file()) == 10


def test_is_a_raw_file() -> None:
    f = file()
    assert f.readable()
    assert f.writable()
    assert f.seekable()
    assert not f.isatty()
    f.close()
    f.close()
    for call in (f.read, f.tell, f.readable, lambda: f.write(b"a"), lambda: f.seek(0)):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_closing_leaves_the_buffer() -> None:
    buffer = CPU.allocate(4)
    memset(buffer, 1)
    with DeviceFile(buffer):
        pass
    assert to_host(buffer).tolist() == [1, 1, 1, 1]


def test_with_a_stream() -> None:
    f = file(stream=CPU.stream())
    f.write(b"ab")
    assert f.read(2) == b"23"
    assert "position=4" in repr(f)


def test_an_empty_buffer_is_at_its_end() -> None:
    f = DeviceFile(CPU.allocate(0))
    assert f.read() == b""
    assert f.write(b"") == 0


def test_works_under_the_buffered_layers() -> None:
    f = file(b"first\nsecond\nthird!")
    assert io.BufferedReader(f).readlines() == [b"first\n", b"second\n", b"third!"]
    target = DeviceFile(CPU.allocate(19))
    writer = io.BufferedWriter(target)
    source = file(b"first\nsecond\nthird!")
    shutil.copyfileobj(source, writer)
    writer.flush()
    target.seek(0)
    assert target.readall() == b"first\nsecond\nthird!"


def test_numpy_saves_into_it() -> None:
    f = DeviceFile(CPU.allocate(1000))
    np.save(f, np.arange(10))
    f.seek(0)
    assert np.load(f).tolist() == list(range(10))


def test_items_wider_than_a_byte_count_in_bytes() -> None:
    f = DeviceFile(CPU.allocate(8))
    assert f.write(np.array([1, 2], np.int32)) == 8
    f.seek(4)
    back = np.zeros(2, np.int32)
    assert f.readinto(back) == 4
    assert back.tolist() == [2, 0]


def test_a_read_takes_no_more_memory_than_there_is_to_read() -> None:
    f = file()
    assert f.read(1 << 62) == b"0123456789"
    f.seek(1 << 70)
    assert f.read() == f.read(None) == f.readall() == b""


def test_arrays_and_tensors_are_written_and_read() -> None:
    values = tensor([1.5, -2.0], "bfloat16")
    f = DeviceFile(CPU.allocate(8))
    assert f.write(values) == f.write(values.numpy()) == 4
    f.seek(0)
    found = np.zeros((2, 2), values.numpy().dtype)
    assert f.readinto(found) == 8
    np.testing.assert_array_equal(found.astype(np.float32), [[1.5, -2.0]] * 2)
    f.seek(4)
    assert f.readinto(values) == 4
    memory = np.zeros(3, np.uint8)
    assert DeviceFile(memory).write(b"ab") == 2
    assert memory.tolist() == [97, 98, 0]


def test_what_is_no_memory_is_refused_by_name() -> None:
    frozen = np.zeros(4, np.uint8)
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match=r"DeviceFile: buffer must be a Buffer or host memory .*, got int"):
        DeviceFile(3)
    with pytest.raises(TypeError, match=r"write: data must be a Buffer or host memory .*, got str"):
        file().write("abc")
    with pytest.raises(ValueError, match="write: data must be C-contiguous, got strides"):
        file().write(np.zeros(8, np.uint8)[::2])
    with pytest.raises(ValueError, match="readinto: target is read-only"):
        file().readinto(frozen)
    reader = DeviceFile(frozen)
    assert not reader.writable()
    with pytest.raises(io.UnsupportedOperation, match="write: Buffer.*read-only"):
        reader.write(b"a")
