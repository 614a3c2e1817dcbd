"""Read the prefixes that Lustre is linked to, and write where a job may and where it may not."""

import hashlib
from pathlib import Path

data = Path("/efs/data")
print(hashlib.md5((data / "sets/large").read_bytes()).hexdigest(), (data / "out/earlier").read_text())
(data / "out/of-a-job").write_text("42")
for name in ("sets/of-a-job", "sets/large"):
    try:
        (data / name).write_text("")
    except PermissionError:
        print("refused")
