"""Runs the README's script with the dmlcomm of an environment, out of reach of any compiler.

Usage: smoke_test.py PYTHON      the environment's

Also asks `dmlcomm doctor`. Prints what was tested, or fails with what the commands have said.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
NUM_RANKS = 2
LIMIT_S = 120


def main(python: str) -> None:
    (script,) = re.findall(r"```python\n(# train\.py\n.*?)```", README.read_text(), re.DOTALL)
    with tempfile.TemporaryDirectory(prefix="dmlcomm-smoke-") as folder:
        version = run(python, "-c", "import torch; print(torch.__version__)", cwd=folder).strip()
        # Older ones do not look for backends themselves.
        finds_backends = tuple(map(int, version.split(".")[:2])) >= (2, 14)
        path = Path(folder) / "train.py"
        path.write_text(script if finds_backends else f"import dmlcomm\n{script}")
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
        output = run(python, *torchrun, str(NUM_RANKS), str(path), cwd=folder)
        doctor = run(python, "-m", "dmlcomm", "doctor", cwd=folder)
    (loss,) = re.findall(r"loss (\d+\.\d+)", output)
    assert 0 < float(loss) < 10, output
    assert re.search(r"shm +│ yes", doctor), doctor
    print(f"torch {version}: the README's script ends with loss {loss}, doctor answers")


def run(python: str, *arguments: str, cwd: str) -> str:
    """What it prints. It sees neither this tree nor programs outside of its environment."""
    environment = {"PATH": os.path.dirname(python), "HOME": cwd, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
