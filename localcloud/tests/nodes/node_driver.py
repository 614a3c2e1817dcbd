"""A local cloud's nodes without an API, controlled by JSON lines on stdin: for test_nodes.py.

python node_driver.py STATE MODE     stdin: {"call": "boot", ...}     stdout: {"ok": ...} | {"error": ...}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from localcloud.ec2.imds import Imds, InstanceFacts
from localcloud.network.dialer import Dialer
from localcloud.network.mount_targets import NFS_PORT, MountTargets
from localcloud.nodes.machine import IMDS_ADDRESS, IMDS_PORT, Machine
from localcloud.nodes.start import start_supervisor


class Driver:
    def __init__(self, state, runner):
        self.runner = runner
        self.machines = {}
        self.ended = []
        self.imds = Imds(self._facts)
        self.mount_targets = MountTargets(runner)
        runner.on_exit = self.ended.append
        Dialer(state / "dial.sock", self._locate, runner.connect)

    def _facts(self, vpc_id, address):
        for machine in self.machines.values():
            if (machine.vpc_id, machine.address) == (vpc_id, address):
                return InstanceFacts(
                    machine.instance_id, machine.instance_type, address, machine.hostname, machine.zone,
                    "us-east-1", "ami-1", None, None, dict,
                )  # fmt: skip
        return None

    def _locate(self, host):
        if host not in self.machines:
            raise LookupError(f"{host} belongs to no running instance of the local cloud")
        return self.machines[host].vpc_id, self.machines[host].address

    def boot(self, machine):
        machine = Machine.from_json(machine)
        if machine.vpc_id not in {known.vpc_id for known in self.machines.values()}:
            self.imds.attach(machine.vpc_id, self.runner.listen(machine.vpc_id, IMDS_ADDRESS, IMDS_PORT))
            self.mount_targets.follow(machine.vpc_id, dict.fromkeys(machine.file_systems.values(), NFS_PORT))
        self.machines[machine.instance_id] = machine
        self.runner.boot(machine)

    def kill(self, instance_id, silent=False):
        self.runner.kill(instance_id, silent)

    def stop(self, instance_id):
        self.runner.stop(instance_id)

    def start(self, instance_id):
        self.runner.boot(self.machines[instance_id])

    def reboot(self, instance_id):
        self.runner.reboot(instance_id)

    def partition(self, instance_id, cut):
        self.runner.partition(instance_id, cut)

    def shape(self, instance_id, rate_bit_s, delay_s):
        self.runner.shape(instance_id, rate_bit_s, delay_s)

    def give_way_out(self, instance_id):
        self.runner.give_way_out(instance_id)

    def stall(self, instance_id, stalled):
        self.runner.stall(instance_id, stalled)

    def remove_vpc(self, vpc_id):
        self.imds.detach(vpc_id)
        self.mount_targets.close(vpc_id)
        self.runner.remove_vpc(vpc_id)

    def nodes(self):
        return [{**vars(node), "console": str(node.console)} for node in self.runner.nodes()]

    def exits(self):
        return self.ended


def serve(state, runner):
    driver = Driver(state, runner)
    print(json.dumps({"ok": "ready"}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": getattr(driver, request.pop("call"))(**request)}
        except Exception as problem:
            answer = {"error": str(problem)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    here = Path(sys.argv[1])
    sys.exit(start_supervisor(here, sys.argv[2], [], [], lambda runner, _listener: serve(here, runner)))
