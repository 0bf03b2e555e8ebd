"""Builds the two extension modules with CMake. Everything else is in pyproject.toml.

CMake runs with the Python that runs this file, in build/<python tag>, which is kept: a second build
compiles only what changed. Extra options for CMake go into CMAKE_ARGS, the number of parallel jobs
into CMAKE_BUILD_PARALLEL_LEVEL.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# File of proto/ -> folder of its Python code, and what is generated: endings by protoc's names.
MESSAGES = {"python": "_pb2.py", "pyi": "_pb2.pyi"}
PROTOCOLS = {
    "dmlcomm_ps": ("dmlcomm/ps/_proto", MESSAGES | {"grpc_python": "_pb2_grpc.py"}),
    "execution_trace": ("dmlcomm/planning/_proto", MESSAGES),
}


def generate_protocols() -> None:
    """Makes the Python code of proto/."""
    for name, (folder, endings) in PROTOCOLS.items():
        generate_protocol(name, folder, endings)


def generate_protocol(name: str, folder: str, endings: dict[str, str]) -> None:
    """Of one file, unless the code is newer than what it is made from."""
    source = ROOT / "proto" / f"{name}.proto"
    made = [ROOT / folder / f"{name}{ending}" for ending in endings.values()]
    if all(path.exists() and path.stat().st_mtime > source.stat().st_mtime for path in made):
        return
    # Imported late: other commands of setuptools do not need it.
    from grpc_tools import protoc

    # The mapped path makes the generated modules import each other by their full names.
    arguments = [
        *("protoc", f"-I{folder}={source.parent}"),
        *(f"--{kind}_out={ROOT}" for kind in endings),
        f"{folder}/{name}.proto",
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit(f"{source} could not be compiled; protoc has said why")


class Protocol(Command):
    """`setup.py protocol`: the generated code alone, for tools that read the sources."""

    user_options: ClassVar[list[tuple[str, str, str]]] = []

    def initialize_options(self) -> None: ...

    def finalize_options(self) -> None: ...

    def run(self) -> None:
        generate_protocols()


class PythonBuild(build_py):
    """Generates the protocol before the package's files are listed."""

    def run(self) -> None:
        generate_protocols()
        super().run()


class CMakeBuild(build_ext):
    """Lets CMake compile what the extensions name; setuptools keeps deciding where they go."""

    def build_extensions(self) -> None:
        generate_protocols()  # `build_ext --inplace` alone has to leave a package that works
        cmake = shutil.which("cmake")
        if cmake is None:
            raise SystemExit("cmake was not found; try: pip install cmake, or the system's package")
        self.cmake_dir = ROOT / "build" / sys.implementation.cache_tag
        subprocess.run(self._configure_command(cmake), check=True)
        build = [cmake, "--build", str(self.cmake_dir), "--target", "_core", "_c10d"]
        if "CMAKE_BUILD_PARALLEL_LEVEL" not in os.environ:
            build += ["--parallel", str(os.cpu_count() or 1)]
        subprocess.run(build, check=True)
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(self.cmake_dir / "csrc" / target.name, target)

    def _configure_command(self, cmake: str) -> list[str]:
        command = [cmake, "-S", str(ROOT), "-B", str(self.cmake_dir)]
        ninja = shutil.which("ninja")
        if ninja is not None:
            command += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        command += [
            f"-DPython_EXECUTABLE={sys.executable}",
            "-DDMLCOMM_BUILD_BINDINGS=ON",
            "-DDMLCOMM_BUILD_TORCH=ON",
            "-DDMLCOMM_WERROR=OFF",
            f"-DDMLCOMM_VERSION={self.distribution.get_version()}",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        self._forget_other_tools(f"{cmake}\n{ninja}\n{sys.prefix}\n")
        if not (self.cmake_dir / "CMakeCache.txt").exists():
            # scripts/cpp_tests.sh turns them on; they stay on, for it to find them up to date.
            command.append("-DDMLCOMM_BUILD_TESTS=OFF")
        return command

    def _forget_other_tools(self, tools: str) -> None:
        """CMake remembers the paths of its tools; an isolated build's are gone afterwards."""
        record = self.cmake_dir / "configured_with.txt"
        if record.exists() and record.read_text() != tools:
            shutil.rmtree(self.cmake_dir)
        self.cmake_dir.mkdir(parents=True, exist_ok=True)
        record.write_text(tools)


setup(
    ext_modules=[Extension("dmlcomm._core", sources=[]), Extension("dmlcomm._c10d", sources=[])],
    cmdclass={"protocol": Protocol, "build_ext": CMakeBuild, "build_py": PythonBuild},
)
