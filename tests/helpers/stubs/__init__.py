"""Stand-ins for libraries that a machine without a GPU lacks."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("libcuda_stub.c")  # refuses every call
COMPILING = Path(__file__).with_name("libcuda_compiling.c")  # no device, but cuDNN's engines compile and load
FAKE = Path(__file__).with_name("libcuda_fake.c")  # one device in software


def build_libcuda_stub(directory: Path, source: Path = SOURCE) -> Path:
    """Compile a driver of this folder to ``directory/libcuda.so.1`` and return its path."""
    library = directory / "libcuda.so.1"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library
