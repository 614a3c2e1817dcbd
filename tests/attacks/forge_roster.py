"""Run by a job with the names of a table and a worker: tries to become the cluster's authority with any credentials.

It then tries to log in as root on the worker, and prints the result of both.
"""

import json
import subprocess
import sys
import time
import zlib

import boto3

# A worker reads the table every 15 s in any case.
NEWS_S = 25


def main():
    name, worker = sys.argv[1:]
    subprocess.run("ssh-keygen -qN '' -t ecdsa -f ca && ssh-keygen -qN '' -t ed25519 -f key", shell=True, check=True)
    subprocess.run("ssh-keygen -q -s ca -I me -n root key.pub", shell=True, check=True)
    try:
        with open("ca.pub") as authority:
            forge(boto3.resource("dynamodb").Table(name), authority.read().strip())
        print("the table: forged")
        print("the worker:", log_in(worker, NEWS_S))
    except Exception as error:
        print(f"the table: {type(error).__name__}: {error}")
        print("the worker:", log_in(worker, 0))


def forge(table, authority):
    """Replace the authority's key by ours for every node, as a new generation."""
    roster, generation = item(table, "roster"), item(table, "generation")
    number = generation["number"] = generation["number"] + 1
    content = {**json.loads(zlib.decompress(roster["roster"].value)), "generation": int(number)}
    for node in content["nodes"]:
        papers = item(table, f"node#{node['instance_id']}")
        table.put_item(Item={**papers, "authority": authority, "generation": number})
    table.put_item(Item={**roster, "roster": json.dumps(content), "generation": number})
    table.put_item(Item=generation)


def item(table, name):
    return table.get_item(Key={"item": name})["Item"]


def log_in(worker, patience_s):
    ssh = ["ssh", "-F", "none", "-i", "key", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]
    end = time.monotonic() + patience_s
    while True:
        done = subprocess.run([*ssh, f"root@{worker}", "id -u"], capture_output=True, text=True, check=False)
        if done.stdout.strip() == "0":
            return "root"
        if time.monotonic() > end:
            return done.stderr.strip()
        time.sleep(1)


if __name__ == "__main__":
    main()
