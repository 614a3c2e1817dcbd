"""Read a mounted prefix, write this rank's file to another, and try to write to the first."""

import os
from pathlib import Path

mounts, rank = Path("/s3"), os.environ["RANK"]
print((mounts / "shelf/sub/one").read_text(), sorted(path.name for path in mounts.iterdir()))
(mounts / "made/a").mkdir(parents=True, exist_ok=True)
(mounts / "made/a" / rank).write_text(f"of rank {rank}")
try:
    (mounts / "shelf/of-a-job").write_text("")
except OSError as error:
    print(error.strerror)
