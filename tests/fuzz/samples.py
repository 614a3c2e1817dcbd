"""A valid record of a job and of one of its processes, for targets that change them."""

PROCESS = {"number": 0, "label": "0", "node": "deeplearning-worker1", "file": "0"}
STATE = {
    "id": "261122-062655-a18e16",
    "name": "",
    "launcher": "mpi",
    "command": ["true"],
    "submitted_at": 1.0,
    "state": "running",
    "started_at": 2.0,
    "ended_at": None,
    "tags": {"team": "vision"},
    "processes": 1,
    "hosts": ["deeplearning-worker1"],
    "exit_code": None,
    "message": "",
    "attempt": 0,
    "restarts": 0,
    "attempts": [],
    "has_secrets": False,
    "tail": [],
    "nodes": [{"node": "deeplearning-worker1", "clean": True, "killed": 0, "message": ""}],
    "runner": {"pid": 1, "start": "2", "boot_id": "3", "head": "i-0123"},
    "allocation": None,
    "stack": "arn:aws:cloudformation:us-east-1:123456789012:stack/demo/1",
    "ranks": {"deeplearning-worker1": 1},
    "waits": False,
}
