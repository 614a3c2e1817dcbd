"""Run by a job on a node of EMR: tries what would make it more than a guest, and prints one JSON object.

The object maps each attempt's name to what it got; "" is nothing. Arguments: the address of the agent's object in S3,
and the id of the EMR cluster.
"""

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import boto3

OWN = ("/emr", "/mnt/var", "/var/lib/cloud", "/home/hadoop", "/etc/hadoop")
# The controller's channel to EMR, the head's way to report success, and private keys.
SECRETS = re.compile(rb"/_emr/[\w-]{20,}|Signature=[\w%]{8,}|BEGIN \w* ?PRIVATE KEY")
METADATA = "http://169.254.169.254/latest/api/token"


def readable(directory):
    """Yield the files in a directory that this user can read, with their beginnings."""
    for path in Path(directory).rglob("*"):
        if path.is_file() and os.access(path, os.R_OK):
            with path.open("rb") as file:
                yield path, file.read(1 << 20)


def secrets():
    found = [path for top in OWN for path, content in readable(top) if SECRETS.search(content)]
    return " ".join(map(str, found))


def writable():
    found = [Path(directory) for top in OWN for directory, _directories, _names in os.walk(top)]
    return " ".join(str(one) for one in found if os.access(one, os.W_OK) and one.stat().st_uid != os.getuid())


def shell(line):
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60).stdout.strip()


def token():
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    request = urllib.request.Request(METADATA, headers=headers, method="PUT")
    return urllib.request.urlopen(request, timeout=5).read().decode()


def controllers():
    """End the programs that EMR runs here."""
    pids = shell("pgrep -f instance-controller").split()
    return " ".join(pid for pid in pids if shell(f"kill {pid} && echo ended"))


def attempts(agent, cluster):
    bucket, _, key = agent.removeprefix("s3://").partition("/")
    s3, emr = boto3.client("s3"), boto3.client("emr")
    step = {"Name": "x", "HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["id"]}}
    return {
        "secrets in files": secrets,
        "directories of others": writable,
        "sudo": lambda: shell("sudo -n -u hadoop id"),
        "ssh to hadoop": lambda: shell("ssh -o BatchMode=yes hadoop@localhost id"),
        "the metadata service": token,
        "another agent for all nodes": lambda: s3.put_object(Bucket=bucket, Key=key, Body=b"#!/bin/sh\nid\n"),
        "another agent in parts": lambda: s3.create_multipart_upload(Bucket=bucket, Key=key),
        "no agent for new nodes": lambda: s3.delete_object(Bucket=bucket, Key=key),
        "a step": lambda: emr.add_job_flow_steps(JobFlowId=cluster, Steps=[step]),
        "the end of the cluster": lambda: emr.terminate_job_flows(JobFlowIds=[cluster]),
        "other clusters": emr.list_clusters,
        "the controller's end": controllers,
    }


def got(attempt):
    try:
        return str(attempt() or "")
    except Exception:
        return ""


if __name__ == "__main__":
    print(json.dumps({name: got(attempt) for name, attempt in attempts(*sys.argv[1:]).items()}))
