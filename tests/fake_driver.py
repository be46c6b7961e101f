"""A driver of NVIDIA for hosts without one, and scripts that say which GPUs they have.

It finds as many GPUs as CUDA_VISIBLE_DEVICES lists.
"""

from __future__ import annotations

import collections
import json
import shutil
import subprocess
from pathlib import Path

SOURCE = """
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *n) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    for (*n = visible && *visible; visible && (visible = strchr(visible, ',')); visible++) ++*n;
    return 0;
}
int cuDeviceGet(int *gpu, int k) { *gpu = k; return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int gpu) { *bytes = (size_t)80 << 30; return 0; }
"""


def missing() -> str:
    """Why none can be made here; "" if one can."""
    return "" if shutil.which("gcc") else "gcc is not installed"


def make(folder: Path) -> str:
    """Compile it, and return its folder, for LD_LIBRARY_PATH."""
    (folder / "driver.c").write_text(SOURCE)
    library = folder / "libcuda.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", str(library), str(folder / "driver.c")], check=True
    )
    return str(folder)


SCRIPT = """
import json, os, pathlib, sys, time
begun = time.time()
here, gpu = pathlib.Path(sys.argv[1]).parent, os.environ['CUDA_VISIBLE_DEVICES']
met = here / 'met'
mine = pathlib.Path(f'{sys.argv[1]}.{gpu}')
mine.touch()
while SHARED and not met.exists() and time.time() < begun + 90:  # for another one on its GPU
    if len(list(here.glob(f'*.{gpu}'))) > 1:
        met.touch()
    time.sleep(0.05)
time.sleep(1)
with open(sys.argv[1], 'w') as file:
    json.dump([gpu, begun, time.time()], file)
mine.unlink()
print('{"step": 1, "score": 1}')
"""
STUDY = """
name = "own"
question = "Which GPUs do scripts have?"
metric = "score"
goal = "lower"
seeds = 3
[command]
run = "python {folder}/train.py {folder}/{{x}}-{{seed}}.json"
gpus = {gpus}
[factors]
x = [1, 2]
"""


def study(folder: Path, gpus: str) -> str:
    """A study of six runs that take a second each, and say in `folder` which GPUs they have.

    Where GPUs are shared, the first runs wait for another one on their GPU.
    """
    (folder / "train.py").write_text(SCRIPT.replace("SHARED", str(float(gpus) < 1)))
    return STUDY.format(folder=folder, gpus=gpus)


def check(folder: Path, gpus: float) -> None:
    """Both GPUs of a host were used, and none by more scripts at a time than asked for shares."""
    ran = [json.loads(file.read_text()) for file in folder.glob("*-*.json")]
    assert len(ran) == 6
    each = [visible.split(",") for visible, *_ in ran]
    assert {len(one) for one in each} == {max(1, int(gpus))}
    assert {gpu for one in each for gpu in one} == {"0", "1"}
    most = [
        max(
            collections.Counter(
                gpu
                for visible, begun, end in ran
                if begun <= moment < end
                for gpu in visible.split(",")
            ).values()
        )
        for _, moment, _ in ran
    ]
    assert max(most) == max(1, int(1 / gpus))
