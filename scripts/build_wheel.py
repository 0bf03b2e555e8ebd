"""Builds an sdist, and from it a wheel for the torch of this environment: `make wheel`.

Usage: build_wheel.py [FOLDER]      FOLDER (dist) gets both

torch gives no stable interface to backends, so there is a wheel for each of its minor versions: the
wheel's version ends with "+torch2.15", and pip installs it beside torch 2.15 only. auditwheel finds
the oldest systems on which it runs (its manylinux tag); torch's own libraries stay outside.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
OF_TORCH = ("libtorch*.so", "libc10*.so")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    sdist = make_sdist(folder)
    print(sdist)
    with tempfile.TemporaryDirectory(prefix="dmlcomm-wheel-") as scratch:
        print(make_wheel(sdist, Path(scratch), folder))


def make_sdist(folder: Path) -> Path:
    run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(folder), cwd=ROOT)
    return max(folder.glob("dmlcomm-*.tar.gz"), key=lambda path: path.stat().st_mtime)


def make_wheel(sdist: Path, scratch: Path, folder: Path) -> Path:
    """Of the torch that runs here."""
    pip = (sys.executable, "-m", "pip", "-q", "wheel", "--no-build-isolation", "--no-deps")
    run(*pip, "--wheel-dir", str(scratch / "built"), str(sdist))
    audit = (sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(scratch / "audited"))
    excluded = [word for name in OF_TORCH for word in ("--exclude", name)]
    run(*audit, *excluded, str(only(scratch / "built")))
    run(sys.executable, "-m", "wheel", "unpack", "-d", str(scratch), str(only(scratch / "audited")))
    (contents,) = scratch.glob("dmlcomm-*")
    bind_to_torch(contents, ".".join(torch.__version__.split(".")[:2]))
    (scratch / "bound").mkdir()
    run(sys.executable, "-m", "wheel", "pack", "-d", str(scratch / "bound"), str(contents))
    wheel = only(scratch / "bound")
    return Path(shutil.move(wheel, folder / wheel.name))  # folders may be on different disks


def bind_to_torch(contents: Path, minor: str) -> None:
    """Makes the metadata of an unpacked wheel demand this minor version of torch."""
    (info,) = contents.glob("*.dist-info")
    lines = (info / "METADATA").read_text().splitlines(keepends=True)
    changed = {"Version: ": f"+torch{minor}\n", "Requires-Dist: torch>=": f",=={minor}.*\n"}
    for start, end in changed.items():
        (place,) = (i for i, line in enumerate(lines) if line.startswith(start))
        lines[place] = lines[place].rstrip() + end
    (info / "METADATA").write_text("".join(lines))
    name = info.name.removesuffix(".dist-info")
    info.rename(info.with_name(f"{name}+torch{minor}.dist-info"))


def only(folder: Path) -> Path:
    (found,) = folder.glob("*.whl")
    return found


def run(*command: str, cwd: Path | None = None) -> None:
    """stdout stays free for what was built."""
    subprocess.run(command, cwd=cwd, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve())
