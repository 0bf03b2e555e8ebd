"""Prints what pip has to install before `pip install --no-build-isolation --no-deps -e .`.

Usage: requirements.py [extra ...]: the build's and the package's requirements, and those extras.
pyproject.toml is the only list.
"""

import sys
import tomllib
from pathlib import Path

pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
project = pyproject["project"]
requirements = pyproject["build-system"]["requires"] + project["dependencies"]
for extra in sys.argv[1:]:
    requirements += project["optional-dependencies"][extra]
print("\n".join(dict.fromkeys(requirements)))
