"""`python -m tests.cluster.images CACHE TORCH [RAY]` makes the images and says where they are."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.images.kinds import describe, prepare

if __name__ == "__main__":
    print(describe(prepare(*(Path(argument) for argument in sys.argv[1:4]))))
