"""Puts the example studies and the reference database, which lie outside the package, into it."""

from setuptools import find_packages, setup

# package → folder; ablate/study/examples.py finds the files
EXAMPLES = {
    "ablate.examples": "studies",
    "ablate.examples.corpora": "studies/corpora",
    "ablate.examples.results": "results",
}

setup(packages=[*find_packages(include=["ablate*"]), *EXAMPLES], package_dir=EXAMPLES)
