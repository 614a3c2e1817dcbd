"""Run by a job with a table's name and a worker's: makes itself the cluster's authority by whatever credentials it
gets, and logs in as root there. Prints what came of each of the two."""

import json
import subprocess
import sys
import time

import boto3

# A worker reads the table each 15 s, whoever tells it.
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
    """Our key in the place of the authority's in every node's papers, as a new generation."""
    roster, generation = item(table, "roster"), item(table, "generation")
    number = generation["number"] = generation["number"] + 1
    content = {**json.loads(roster["roster"]), "generation": int(number)}
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
