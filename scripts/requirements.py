"""Prints what pip has to install before `pip install --no-build-isolation --no-deps -e .`.

Usage: requirements.py [--only] [extra ...]: the build's and the package's requirements, and those
extras; with --only the extras alone. pyproject.toml is the only list.
"""

import sys
import tomllib
from pathlib import Path

pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
project = pyproject["project"]
extras = sys.argv[1:]
requirements = pyproject["build-system"]["requires"] + project["dependencies"]
if extras[:1] == ["--only"]:
    requirements, extras = [], extras[1:]
for extra in extras:
    requirements += project["optional-dependencies"][extra]
print("\n".join(dict.fromkeys(requirements)))
