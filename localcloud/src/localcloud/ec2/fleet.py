"""The fleet of instances: moto keeps their records, and a node on this machine runs each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.elastic_network_interfaces import NetworkInterface
from moto.ec2.models.instances import Instance, Reservation, StateReason

from localcloud.api.moto_setup import FULL_IMAGES
from localcloud.context import Context
from localcloud.daemon import room
from localcloud.ec2 import gpus, placement, reserved
from localcloud.ec2.capacity import CapacityError, Pool, no_room_message
from localcloud.iam import keys
from localcloud.nodes.machine import Machine, NodeError
from localcloud.storage import file_systems
from localcloud.weather import launches, organisation
from localcloud.weather.absences import Absences
from localcloud.weather.neighbours import Neighbours

log = logging.getLogger(__name__)

STATE_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
LIVE = ("pending", "running")
# How long a machine that thrashes may be silent, and live.
STALL_S = 40.0

# Every launch and termination goes through these two: RunInstances, Auto Scaling's and CloudFormation's.
_moto_run = EC2Backend.run_instances
_moto_terminate = EC2Backend.terminate_instances


class Fleet:
    """All instances. Each of `watchers` is called, from any thread, with the id of an instance that changed state."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.pool = Pool()
        self.boot_delay_s = 0.0
        self.taken_at: dict[str, datetime] = {}  # the spot instances that have had their notice
        self.watchers: list[Callable[[str], None]] = []
        self._neighbours = Neighbours(context)
        self._absences = Absences(context)
        self._lock = threading.RLock()
        # Of moto's records, for launches and ends, which take milliseconds each.
        self._recording = threading.RLock()
        self._live: dict[str, Instance] = {}
        # The stopped ones, which have given back their places.
        self._without_place: set[str] = set()
        context.runner.on_exit = self.exited

    def launch(self, backend: EC2Backend, request: placement.Request) -> Reservation:
        """Start instances: `pending` at first, `running` once their nodes run. Raises EC2ClientError."""
        request.check()
        try:
            organisation.check_launch(self.context)
            launches.refuse_in_bad_weather(self.context.weather, request)
            self._refuse_without_room(request)
            reserved_in = self._take_capacity(request)
        except CapacityError as refusal:
            raise EC2ClientError(refusal.code, refusal.message) from refusal
        try:
            reservation = self._record(backend, request, reserved_in)
        except BaseException:
            self._give_back(request.instance_type, request.zone, reserved_in, request.count)
            raise
        for instance in reservation.instances:
            self.context.weather.christen(instance.id, launches.group_of(request))
            self._boot_soon(instance)
        return reservation

    def _take_capacity(self, request: placement.Request) -> str:
        """Take places in a reservation and return its id, or take free capacity and return ""."""
        place = (request.backend.region_name, request.zone, request.instance_type)
        found = reserved.take(request.wish, place, request.count, self.context.clock.now())
        if found is None:
            self.pool.take(request.instance_type, request.zone, placement.vcpus(request.instance_type), request.count)
            return ""
        try:
            self.pool.refuse_by_fault()
        except CapacityError:
            self._give_back(request.instance_type, request.zone, found.id, request.count)
            raise
        return found.id

    def _give_back(self, instance_type: str, zone: str, reserved_in: str, count: int = 1) -> None:
        # A reservation that has ended meanwhile has left the places in use to their instances.
        if not reserved_in or reserved.leave(reserved_in, count):
            self.pool.give_back(instance_type, zone, placement.vcpus(instance_type), count)

    def _refuse_without_room(self, request: placement.Request) -> None:
        """Raise CapacityError, as EC2 does without capacity, if this machine can't carry this many nodes more."""
        if self.context.gauges is None:
            return
        live, full = self.live(), set(FULL_IMAGES.values())
        vpc_id = request.backend.get_subnet(request.subnet_id).vpc_id if request.subnet_id else ""
        systems = sum(instance.image_id in full for instance in live)
        nodes = room.Nodes(
            plain=len(live) - systems,
            full=systems,
            starting=sum(instance.state == "pending" for instance in live),
            in_vpc=sum(instance.vpc_id == vpc_id for instance in live),
        )
        is_full = request.image_id in full
        for short in room.shortages(room.limits(self.context.gauges, nodes, is_full), request.count)[:1]:
            message = no_room_message(request.instance_type, request.zone, short.fix, short.what)
            raise CapacityError("InsufficientInstanceCapacity", message)

    def _record(self, backend: EC2Backend, request: placement.Request, reserved_in: str) -> Reservation:
        with self._recording:
            reservation = _moto_launch(backend, request)
        with self._lock:
            for instance in reservation.instances:
                _set_state(instance, "pending")
                self._live[instance.id] = instance
        for instance in reservation.instances:
            request.complete(instance)
            put_in_reservation(instance, reserved_in)
            # One that ends from here on finds the instance itself.
            if reserved.is_released(reserved_in):
                put_in_reservation(instance, "")
        return reservation

    def _boot_soon(self, instance: Instance) -> None:
        if self.boot_delay_s > 0:
            self.context.clock.call_later(self.boot_delay_s, self._boot, instance)
        else:
            self.context.spawn(self._boot, instance, name=f"boot-{instance.id}")

    def _boot(self, instance: Instance) -> None:
        if instance.state != "pending":
            return
        if organisation.forbids_disk(self.context) or _is_without_key(self.context, instance):
            self.end(instance, "Client.InternalError", organisation.KEY_REFUSED)
            return
        try:
            without_s = launches.without_way_out_s(self.context.weather, instance)
            found = launches.in_weather(self.context.weather, placement.machine(instance))
            machine = self._equipped(replace(found, has_way_out=without_s == 0))
            self.context.serve_vpc(machine.vpc_id)
            file_systems.buckets(self.context, machine.vpc_id)
            self.context.runner.boot(machine)
            if without_s:
                self.context.clock.call_later(without_s, self.context.runner.give_way_out, instance.id)
        except Exception as error:
            log.exception("the node of %s did not start", instance.id)
            self.end(instance, "Server.InternalError", f"Server.InternalError: Internal error on launch: {error}")
            return
        with self._lock:
            still_wanted = instance.state == "pending"
            if still_wanted:
                _set_state(instance, "running")
        if not still_wanted:
            self.context.runner.kill(instance.id)
        self._changed(instance.id)
        self._stall_later(instance.id)
        self._neighbours.welcome(instance)
        self._absences.plan(instance)

    def _equipped(self, machine: Machine) -> Machine:
        """Give a machine whose type has GPUs the stand-ins that were requested (`localcloud gpus`)."""
        number, name = gpus.count(self.context.state), placement.gpu(machine.instance_type)
        return gpus.equip(machine, name, number, self.context.weather) if number and name else machine

    def reboot(self, instance: Instance) -> None:
        """Reboot the machine of a running instance; return at once."""
        if instance.state == "running":
            self.context.spawn(self.context.runner.reboot, instance.id, name=f"reboot-{instance.id}")

    def stop(self, instance: Instance) -> None:
        """Begin to stop a running instance and return at once. Its machine keeps its disk, and may start again."""
        code = "Client.UserInitiatedShutdown"
        if self._stops(instance, code, f"{code}: User initiated shutdown"):
            self.context.spawn(self._halt, instance, name=f"stop-{instance.id}")

    def _stops(self, instance: Instance, code: str, message: str) -> bool:
        """Set an instance that runs to `stopping`; return whether it did."""
        with self._lock:
            if instance.state not in LIVE:
                return False
            _set_state(instance, "stopping")
            instance.state_reason = StateReason(message, code)
        return True

    def _halt(self, instance: Instance) -> None:
        self._changed(instance.id)
        try:
            self.context.runner.stop(instance.id)
        finally:
            self._stopped(instance)

    def _stopped(self, instance: Instance) -> None:
        """Give back what a stopped instance does not keep: its place, and a public address that is not its own."""
        with self._recording, self._lock:
            if instance.state != "stopping":
                return
            reserved_in = reservation_of(instance)
            put_in_reservation(instance, "")
            self._without_place.add(instance.id)
            _change_addresses(instance, NetworkInterface.stop)
            _set_state(instance, "stopped")
        self._give_back(instance.instance_type, instance.placement.zone or "", reserved_in)
        self._changed(instance.id)

    def start(self, instance: Instance) -> None:
        """Begin to start a stopped instance and return at once. Raises EC2ClientError without capacity."""
        place = (instance.instance_type, instance.placement.zone or "", placement.vcpus(instance.instance_type))
        try:
            self.pool.take(*place, 1)
        except CapacityError as refusal:
            raise EC2ClientError(refusal.code, refusal.message) from refusal
        with self._recording, self._lock:
            is_stopped = instance.state == "stopped"
            if is_stopped:
                _set_state(instance, "pending")
                instance.state_reason = StateReason()
                self._without_place.discard(instance.id)
                _change_addresses(instance, NetworkInterface.start)
        if not is_stopped:
            self.pool.give_back(*place, 1)
            return
        self._changed(instance.id)
        self._boot_soon(instance)

    def stall(self, instance_id: str, for_s: float) -> None:
        """Let an instance's processes stand still for this long; one that has ended meanwhile stays so."""

        def stop_or_continue(stalled: bool) -> None:
            with suppress(NodeError):
                self.context.runner.stall(instance_id, stalled)

        stop_or_continue(True)
        self.context.clock.call_later(for_s, stop_or_continue, False)

    def _stall_later(self, instance_id: str) -> None:
        delay_s = launches.stalls_after_s(self.context.weather, instance_id)
        if delay_s:
            self.context.clock.call_later(delay_s, self.stall, instance_id, STALL_S)

    def end(self, instance: Instance, code: str, message: str) -> None:
        """Begin to terminate an instance and return at once; it is `terminated` when its node is gone."""
        with self._lock:
            if instance.state in ("shutting-down", "terminated"):
                return
            _set_state(instance, "shutting-down")
            instance.state_reason = StateReason(message, code)
        self.context.spawn(self._finish, instance, name=f"end-{instance.id}")

    def _finish(self, instance: Instance) -> None:
        try:
            self.context.runner.kill(instance.id)
        finally:
            reason = instance.state_reason
            with self._recording, self._lock:
                release_network(instance)
                _moto_terminate(instance.ec2_backend, [instance.id])
                instance.state_reason = reason
                self._live.pop(instance.id, None)
                self.taken_at.pop(instance.id, None)
            if instance.id in self._without_place:
                self._without_place.discard(instance.id)
            else:
                self._give_back(instance.instance_type, instance.placement.zone or "", reservation_of(instance))
            self._changed(instance.id)

    def exited(self, instance_id: str) -> None:
        """Handle the end of a node by itself: stop or terminate the instance, as configured (AWS's default is stop)."""
        reason = "Client.InstanceInitiatedShutdown: Instance initiated shutdown"
        with self._lock:
            instance = self._live.get(instance_id)
            if instance is None or instance.state not in LIVE:
                return
            if instance.instance_initiated_shutdown_behavior == "terminate":
                self.end(instance, "Client.InstanceInitiatedShutdown", reason)
                return
            self._stops(instance, "Client.InstanceInitiatedShutdown", reason)
        self._stopped(instance)

    def when_it_is(self, instance_id: str, states: Collection[str], call: Callable[[str], None]) -> None:
        """Call `call(state)` once, as soon as the instance is in one of these states; it may be so already."""

        def look(changed_id: str) -> None:
            instance = self._live.get(instance_id)
            state = instance.state or "" if instance else "terminated"
            if changed_id == instance_id and state in states and self._removed(look):
                call(state)

        self.watchers.append(look)
        look(instance_id)

    def _removed(self, watcher: Callable[[str], None]) -> bool:
        """Remove a watcher; return False if another thread has done so."""
        with suppress(ValueError):
            self.watchers.remove(watcher)
            return True
        return False

    def instance(self, instance_id: str) -> Instance | None:
        """Return an instance, or None when it has terminated or never existed."""
        return self._live.get(instance_id)

    def live(self) -> list[Instance]:
        """Return the instances that are not terminated. Waits for nothing: each request of a node comes here."""
        return list(self._live.values())

    def _changed(self, instance_id: str) -> None:
        self.context.network_changed()
        for watcher in list(self.watchers):
            watcher(instance_id)


_fleet: Fleet | None = None


def current() -> Fleet:
    """Return the fleet of the installed local cloud."""
    assert _fleet is not None, "call ec2.install() first"
    return _fleet


def install(context: Context) -> Fleet:
    """Create this local cloud's fleet, which is notified of every node that ends by itself."""
    global _fleet
    _fleet = Fleet(context)
    return _fleet


def _moto_launch(backend: EC2Backend, request: placement.Request) -> Reservation:
    """Call moto's own run_instances, and remove what it leaves behind when it fails."""
    before = set(backend.reservations)
    mappings = placement.without_speed(request.kwargs["block_device_mappings"])
    kwargs = {**request.kwargs, "nics": placement.addressed(request.kwargs["nics"]), "block_device_mappings": mappings}
    try:
        return _moto_run(backend, request.image_id, request.count, request.user_data, request.group_names, **kwargs)
    except BaseException:
        for reservation_id in set(backend.reservations) - before:
            for instance in backend.reservations.pop(reservation_id).instances:
                release_network(instance)
        raise


def release_network(instance: Instance) -> None:
    """Disassociate the Elastic IP, delete the interfaces and free the addresses, as AWS does at termination."""
    backend = instance.ec2_backend
    interfaces = list(instance.nics.values())
    for address in list(backend.addresses):
        if address.instance is instance or address.eni in interfaces:
            backend.disassociate_address(address=address.public_ip)
    for interface in interfaces:
        if interface.id in backend.enis:
            interface.delete()
            # Otherwise moto would delete it again, and fail.
            interface.delete_on_termination = False
    # moto would free the address again when the object is collected, when another instance may have it.
    instance._private_ips = set()


def _change_addresses(instance: Instance, change: Callable[[NetworkInterface], None]) -> None:
    """Release or give the public addresses of an instance's interfaces, except for Elastic IPs, which stay."""
    kept = {address.eni.id for address in instance.ec2_backend.addresses if address.eni is not None}
    for interface in instance.nics.values():
        if interface.id not in kept:
            change(interface)


def put_in_reservation(instance: Instance, reservation_id: str) -> None:
    """Record the reservation in which an instance runs; "" for none."""
    setattr(instance, "capacity_reservation_id", reservation_id or None)  # noqa: B010 (moto's instance lacks it)


def reservation_of(instance: Instance) -> str:
    """Return the id of the reservation in which an instance runs, or ""."""
    return getattr(instance, "capacity_reservation_id", None) or ""


def _set_state(instance: Instance, name: str) -> None:
    instance._state.name = name
    instance._state.code = STATE_CODES[name]


def _is_without_key(context: Context, instance: Instance) -> bool:
    """Whether Auto Scaling launched an instance, and may not use the key of one of its disks."""
    if all(one["key"] != "aws:autoscaling:groupName" for one in instance.get_tags()):
        return False
    region = instance.ec2_backend.region_name
    volumes = (instance.ec2_backend.get_volume(one.volume_id) for _, one in instance.get_block_device_mapping)
    return any(keys.refusal_of_disk(context, region, one.kms_key_id) for one in volumes)
