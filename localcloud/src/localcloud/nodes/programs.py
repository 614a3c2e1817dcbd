"""The image's own programs: shell scripts, so that a node boots in milliseconds and needs little memory."""

from __future__ import annotations

import signal

# Contains the file systems that a node may mount, by id, and a file with the domain of its region.
EFS_ROOT = "/run/efs.host"
# How many directories a node can export over NFS.
MOST_EXPORTS = 4

# Exit status of our process 1 that requests a reboot.
REBOOT = 64
# What lets our process 1 end the machine as a reboot does, without another start.
POWER_OFF = signal.SIGPWR
# In a pid namespace, reboot(2) ends process 1 with SIGHUP, and power-off with SIGINT (pid_namespaces(7)).
REBOOTS = (REBOOT, 128 + signal.SIGHUP)

# How long mount.efs tries to connect to the mount target (`retry_nfs_mount_command_timeout_sec` in efs-utils.conf).
_NFS_TIMEOUT_S = 15

# What process 1 writes, and to which fd, once it handles signals.
READY = b"ready\n"
READY_FD = 3

_INIT = """\
#!/bin/sh
# Process 1 of a node: does what systemd does at boot (mounts of fstab, then enabled services, cloud-init last) and
# reaps orphans. SIGTERM ends the machine at once, and SIGPWR after its processes. SIGINT, which stands for
# Ctrl-Alt-Del, reboots it.
shut_down() {
  trap '' INT PWR
  kill -TERM -1
  # Processes that have not ended in 5 s (systemd: 90 s) end with this one.
  for _ in $(seq 50); do
    kill -0 -1 2>/dev/null || break
    sleep 0.1
  done
  exit "$1"
}
trap 'exit 0' TERM
trap 'shut_down 0' PWR
trap 'shut_down @REBOOT@' INT
echo ready >&@READY_FD@
exec @READY_FD@>&-
[ ! -s /etc/fstab ] || mount -a
[ ! -d /etc/exports.d ] || exportfs -ra
# Not with &: a shell's background processes ignore SIGINT.
for unit in /etc/systemd/system/multi-user.target.wants/*.service; do
  [ ! -e "$unit" ] || setsid -f /sbin/service "$unit"
done
setsid -f /sbin/cloud-init init
while :; do
  sleep infinity &
  wait $!
done
""".replace("@REBOOT@", str(REBOOT)).replace("@READY_FD@", str(READY_FD))

_SERVICE = """\
#!/bin/sh
# service UNIT: runs a unit as systemd does, by the settings that are supported here.
setting() { sed -n "s/^$1=//p" "$unit"; }
unit=$1; start=$(setting ExecStart)
while :; do
  $start; status=$?
  case "$(setting Restart) $status" in
    "on-failure 0") exit ;;
    on-failure*|always*) ;;
    *) exit ;;
  esac
  case " $(setting RestartPreventExitStatus) " in *" $status "*) exit ;; esac
  sleep "$(setting RestartSec)"
done
"""

_CLOUD_INIT = """\
#!/bin/sh
# cloud-init init: runs the scripts for each boot; then the user data's (user_data.py), once in the instance's life, and
# prints how it ended. What it prints goes to the console and, as the file of AMIs sets it up, through tee to a log.
# cloud-init status [--wait] [--long]: says how far it is in this boot.
result=/run/cloud-init/result.json
if [ "${1-}" = status ]; then
  case " $* " in *" --wait "* | *" -w "*) until [ -e $result ]; do sleep 0.2; done ;; esac
  status=running ended=0
  [ ! -e $result ] || status=done
  ! grep -q failures $result 2>/dev/null || { status=error ended=1; }
  echo "status: $status"
  exit $ended
fi
[ "${1-}" = init ] || { echo "The local cloud's cloud-init has only status [--wait]." >&2; exit 2; }
mkdir /run/cloud-init || exit
log=/var/log/cloud-init-output.log pipe=/run/cloud-init.pipe
[ -e $log ] || { : >$log; chmod 640 $log; chgrp adm $log; } 2>/dev/null
mkfifo -m 600 $pipe
tee -a $log <$pipe &
exec >$pipe 2>&1
rm $pipe
instance=/var/lib/cloud/instance errors=
[ ! -x $instance/boothook ] || INSTANCE_ID=$(cat /var/lib/cloud/data/instance-id) $instance/boothook
if [ -x $instance/config ] && [ ! -e $instance/sem/config ]; then
  : >$instance/sem/config
  $instance/config
fi
for script in /var/lib/cloud/scripts/per-boot/*; do
  [ ! -x "$script" ] || "$script"
done
if [ ! -e $instance/sem/config_scripts_user ]; then
  : > $instance/sem/config_scripts_user
  status=
  for script in $instance/scripts/*; do
    [ -x "$script" ] || continue
    "$script"; ended=$?
    [ "${status:-0}" != 0 ] || status=$ended
  done
  read -r seconds _ < /proc/uptime
  [ ! "$status" ] || echo "[$seconds] user data ended with status $status"
  [ "${status:-0}" = 0 ] || errors='"scripts_user: Runparts: failures in attempted commands"'
fi
echo "{\\"v1\\": {\\"datasource\\": \\"DataSourceEc2Local\\", \\"errors\\": [$errors]}}" >$result
: > $instance/boot-finished
"""

_CLOUD_INIT_PER = """\
#!/bin/sh
# cloud-init-per once|instance|always NAME COMMAND…: runs a command of user data once, or at each boot
[ $# -ge 3 ] || { echo 'Usage: cloud-init-per frequency name cmd [ arg1 [ arg2 [ ... ] ] ]' >&2; exit 1; }
case $1 in once | instance | always) ;; *) echo "invalid frequency: $1" >&2; exit 1 ;; esac
ran=/var/lib/cloud/instance/sem/bootper.$2.$1
[ "$1" = always ] || [ ! -e "$ran" ] || exit 0
shift 2
"$@"; ended=$?
: >"$ran"
exit $ended
"""

_SHUTDOWN = """\
#!/bin/sh
# Ends or reboots the machine at once. Retries, because a login may be faster than process 1 is ready.
signal=TERM
case "$0 $* " in *reboot*|*" -r "*) signal=INT ;; esac
while kill -$signal 1; do sleep 0.05; done
"""

# `connects PORT` tries $address. A function of bash and no program of its own, since every node mounts.
_CONNECTS = """\
connects() {
  read -r -t @TIMEOUT_S@ _ < <(exec 2>/dev/null; : < "/dev/tcp/$address/$1" && echo connected) && return
  kill $! 2>/dev/null
  return 1
}
""".replace("@TIMEOUT_S@", str(_NFS_TIMEOUT_S))

# `read_options [-o OPTIONS]…` sets $options; `bind SOURCE DIR OPTIONS` binds with those that a bind mount can have.
_BIND = """\
read_options() {
  options=
  while [ $# -gt 0 ]; do
    case $1 in
      -o) options=$options,$2; shift ;;
      -o?*) options=$options,${1#-o} ;;
    esac
    shift
  done
}
bind() {
  # `mount -a` leaves alone what is mounted.
  [ ! "$1" -ef "$2" ] || { echo "$2 is already mounted" >&2; return; }
  flags=
  for flag in ro nosuid nodev noexec; do
    case ",$3," in *",$flag,"*) flags=$flags,$flag ;; esac
  done
  /bin/mount --bind "$1" "$2" || return
  [ -z "$flags" ] || /bin/mount -o "remount,bind$flags" "$2" || { umount "$2"; return 1; }
}
"""

# `from_efs ID PATH DIR OPTIONS` mounts a directory of a file system, whose mount target lets this node in by NFS.
_FROM_EFS = (
    """\
@BIND@@CONNECTS@from_efs() {
  [ -d "@ROOT@/$1/$2" ] || die "mount.nfs4: mounting $device failed, reason given by server: No such file or \\
directory" 32
  [ -d "$3" ] || die "mount.nfs4: mount point $3 does not exist" 32
  read -r address < "@ROOT@/$1.address"
  case ,$4, in *,mounttargetip=*) address=${4##*mounttargetip=}; address=${address%%,*} ;; esac
  connects 2049 || die 'mount.nfs4: Connection timed out' 32
  if [ -e "@ROOT@/$1.tls" ]; then
    case ,$4, in *,tls,*) ;; *) die "mount.nfs4: access denied by server while mounting $device" 32 ;; esac
  fi
  bind "@ROOT@/$1/$2" "$3" "$4" || exit 32
}
""".replace("@ROOT@", EFS_ROOT)
    .replace("@BIND@", _BIND)
    .replace("@CONNECTS@", _CONNECTS)
)

# The messages are those of amazon-efs-utils (its mount_efs/__init__.py).
_MOUNT_EFS = """\
#!/bin/bash
# mount.efs FS[:PATH] DIR [-o OPTIONS]: what amazon-efs-utils does on EC2, with a directory of this machine
die() { printf '%s\\n' "$1" >&2; exit "${2:-1}"; }
@FROM_EFS@[ $# -ge 2 ] || die 'Usage: mount.efs <fs-id-or-dns-name>[:<path>] <mountpoint> [-o <options>]'
device=$1; dir=$2; shift 2; read_options "$@"
fs=${device%%:*}; path=/; case $device in *:*) path=${device#*:} ;; esac
id=${fs%%.*}
case ,$options, in *,tls,*) ;; *,iam,*) die 'The "tls" option is required when mounting via "iam"' ;; esac
case ,$options, in *,accesspoint=*) die 'The local cloud has no EFS access points' ;; esac
case $id in fs-*) ;; *) die "Invalid file system name: $fs" ;; esac
read -r domain < @ROOT@/domain
name=$id.efs.$domain
case $fs in "$id" | "$name") ;; *) die "Failed to resolve server $fs: Name or service not known" 32 ;; esac
[ -d "@ROOT@/$id" ] || die "Failed to resolve \\"$name\\" - \\
check that your file system ID is correct, and ensure that the VPC has an EFS mount target for this file system ID."
[ -d "@ROOT@/$id/$path" ] || die "mount.nfs4: mounting $device failed, reason given by server: No such file or \\
directory" 32
device=$name:$path
from_efs "$id" "$path" "$dir" "$options"
""".replace("@ROOT@", EFS_ROOT).replace("@FROM_EFS@", _FROM_EFS)

# The messages are those of Lustre's client (docs/aws-behaviour.md 4.16).
_MOUNT_LUSTRE = (
    """\
#!/bin/bash
# mount.lustre SERVER@tcp:/NAME DIR [-o OPTIONS]: what Lustre's client does on EC2, with a directory of this machine
die() { printf 'mount.lustre: %s\\n' "$1" >&2; exit "$2"; }
@BIND@@CONNECTS@device=$1; dir=$2; server=${device%%@*}; id=${server%%.*}; name=${device##*@tcp:/}
served=@ROOT@/lustre/$id
case $id in fs-*) ;; *) die "Can't parse NID '$device'" 22 ;; esac
[ "$server" = "$id.fsx.$(cat @ROOT@/domain)" ] && [ -d "$served" ] || die "Can't parse NID '$device'" 22
read -r address < "$served.address"
connects 988 ||
  die "mount $device at $dir failed: Connection timed out" 110
[ "$name" = "$(cat "$served.name")" ] || die "mount $device at $dir failed: No such file or directory
Is the MGS specification correct?
Is the filesystem name correct?" 2
[ -d "$dir" ] || die "$dir is not a directory" 20
bind "$served" "$dir" nosuid,nodev || exit 32
""".replace("@ROOT@", EFS_ROOT)
    .replace("@BIND@", _BIND)
    .replace("@CONNECTS@", _CONNECTS)
)

# What a node exports is a tree that all nodes of its VPC can bind (exports.py); a bind mount plays NFS, without a
# connection. A node's list has a line for each directory: its path, and the random name of its tree.
_EXPORTFS = (
    """\
#!/bin/sh
# exportfs -ra: exports the directories in /etc/exports.d to the nodes of this VPC
[ "$*" = -ra ] || { echo "exportfs: the local cloud has only the options -ra" >&2; exit 1; }
cd @ROOT@ || exit 1
@BIND@for dir in $(sed -s 's/ .*//' /etc/exports.d/*.exports); do
  name=$(awk -v "dir=$dir" '$1 == dir { print $2 }' "own-list")
  if [ -z "$name" ]; then
    name=$(awk 'FILENAME == "own-list" { taken[$2]; next } !($1 in taken) { print $1; exit }' "own-list" own-trees)
    [ "$name" ] || { echo "exportfs: $dir: a node of the local cloud exports @MOST@ directories" >&2; exit 1; }
    echo "$dir $name" >>own-list
  fi
  mkdir -p "$dir"
  [ "$dir" -ef "trees/$name" ] || bind "trees/$name" "$dir" nosuid,nodev || exit 1
done
""".replace("@ROOT@", EFS_ROOT)
    .replace("@BIND@", _BIND)
    .replace("@MOST@", str(MOST_EXPORTS))
)

# The list is the server's, so it may contain anything.
_MOUNT_NFS = """\
#!/bin/bash
# mount.nfs4 SERVER:PATH DIR [-o OPTIONS]: mounts what a node of this VPC exports, or an EFS file system, by NFS alone
die() { printf '%s\\n' "$1" >&2; exit 32; }
@FROM_EFS@device=$1; server=${1%%:*}; path=${1#*:}; dir=$2; shift 2; read_options "$@"
case ,$options, in *,tls,* | *,iam,*) die 'mount.nfs4: an incorrect mount option was specified' ;; esac
read -r domain < @ROOT@/domain
for known in @ROOT@/fs-*.address; do
  [ -e "$known" ] || continue
  id=${known##*/}; id=${id%.address}
  read -r address < "$known"
  case $server in "$id.efs.$domain" | "$address")
    case ,$options, in *vers=[23],* | *vers=[23].*)
      die 'mount.nfs4: requested NFS version or transport protocol is not supported' ;;
    *vers=4.2,* | *minorversion=2,*) die 'mount.nfs4: Protocol not supported' ;;
    esac
    from_efs "$id" "$path" "$dir" "$options"; exit ;;
  esac
done
case $server in *[!0-9.]*) die "mount.nfs4: Failed to resolve server $server: Name or service not known" ;; esac
name=$(awk -v path="$path" '$1 == path { print $2 }' "@ROOT@/lists/$server" 2>/dev/null)
case $name in '' | *[!0-9a-f]*) die "mount.nfs4: Connection refused" ;; esac
[ -d "@ROOT@/trees/$name" ] || die "mount.nfs4: Connection refused"
bind "@ROOT@/trees/$name" "$dir" "$options"
""".replace("@ROOT@", EFS_ROOT).replace("@FROM_EFS@", _FROM_EFS)

# A copy of util-linux's setpriv, setuid root, which only the group sudo can execute (image.py).
SETPRIV = "/usr/local/sbin/setpriv-for-sudo"

# Our own, because a host may have no sudo, or one whose sudoers, plug-ins and PAM do not fit the node.
_SUDO = """\
#!/bin/sh
# Supports what scripts use of sudo(8). Members of the group sudo need no password, as on EC2's images.
user=root keep= shell=
while getopts EHinSsu: option; do
  case $option in
    u) user=$OPTARG ;;
    E) keep=1 ;;
    i|s) shell=$option ;;
    H|n|S) ;;
    *) exit 1 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || [ "$shell" ] || { echo 'usage: sudo [-EHinsS] [-u user] [VAR=value] [command]' >&2; exit 1; }
IFS=: read -r name _ uid gid _ home program <<END
$(getent passwd "$user")
END
[ "$name" ] || { echo "sudo: unknown user $user" >&2; exit 1; }
. /etc/environment
login=; [ "$shell" != i ] || login=-l
[ -z "$shell" ] || set -- "$program" $login ${1:+-c '"$@"' "$program" "$@"}
set -- PATH="$PATH" SUDO_USER="$(id -un)" SUDO_UID="$(id -u)" SUDO_GID="$(id -g)" "$@"
[ "$keep" ] ||
  set -- -i TERM="${TERM-dumb}" LANG="${LANG-C}" HOME="$home" USER="$name" LOGNAME="$name" SHELL="$program" "$@"
[ -z "$login" ] || set -- -C "$home" "$@"
set -- env "$@"
if [ "$uid" != "$(id -u)" ]; then
  [ -x @SETPRIV@ ] || { echo "sudo: $(id -un) is not in the group sudo" >&2; exit 1; }
  set -- @SETPRIV@ --reuid "$uid" --regid "$gid" --init-groups "$@"
fi
exec "$@"
""".replace("@SETPRIV@", SETPRIV)

# The message is that of the OpenSSH of Red Hat and Amazon Linux (docs/aws-behaviour.md 6.9).
SSH_KEYGEN_IN_FIPS = """\
#!/bin/sh
# ssh-keygen: makes no key whose kind is not allowed in FIPS mode
before=
for word; do
  case $before$word in
    -ted25519*|-tdsa) echo "$(echo "${word#-t}" | tr a-z A-Z) keys are not allowed in FIPS mode" >&2; exit 255 ;;
  esac
  before=; [ "$word" != -t ] || before=-t
done
exec /usr/bin/ssh-keygen "$@"
"""

# What the machine's GPUs are, and how long their driver still has to be loaded.
GPUS = "/run/gpus"

_NVIDIA_SMI = """\
#!/bin/sh
# nvidia-smi: lists the stand-ins of `localcloud gpus`. It loads the driver first, and has no queries.
case $* in
  '' | -L | --list-gpus) ;;
  *) echo "The local cloud's nvidia-smi has only the option -L." >&2; exit 6 ;;
esac
[ ! -e @GPUS@.cold ] || sleep "$(cat @GPUS@.cold)"
rm -f @GPUS@.cold
cat @GPUS@
""".replace("@GPUS@", GPUS)

# name → text, by the directory of the image that is overlaid on the host's
PROGRAMS = {
    # where mount(8) looks for its helpers
    "sbin": {
        "init": _INIT,
        "service": _SERVICE,
        "cloud-init": _CLOUD_INIT,
        "cloud-init-per": _CLOUD_INIT_PER,
        "mount.efs": _MOUNT_EFS,
        "mount.lustre": _MOUNT_LUSTRE,
        "mount.nfs": _MOUNT_NFS,
        "mount.nfs4": _MOUNT_NFS,
    },
    # first in PATH, before the host's own
    "usr/local/sbin": {
        "poweroff": _SHUTDOWN,
        "reboot": _SHUTDOWN,
        "shutdown": _SHUTDOWN,
        "sudo": _SUDO,
        "exportfs": _EXPORTFS,
    },
}
# The same for machines with GPUs; it is above that layer.
PROGRAMS_FOR_GPUS = {"gpus/usr/local/sbin": {"nvidia-smi": _NVIDIA_SMI}}
