#!/bin/bash
# A bootstrap action of Amazon EMR: mounts an EFS file system at /efs on every node, now and after each restart.
# Arguments: the file system's id and its region, such as fs-0123456789abcdef0 us-east-1.
# EFS resolves a file system's name only in a VPC with DNS host names, in a zone that has a mount target of it.
set -euo pipefail

directory=/efs
# A new mount target may not be resolved for a minute and a half.
tries=24 pause_s=5

fail() {
  printf 'emr_efs_bootstrap.sh: %s\n' "$*" >&2
  exit 1
}

[ $# = 2 ] || fail "needs two arguments, the id of an EFS file system and its region, and has $#: $*"
[[ $1 =~ ^fs-[0-9a-f]{8,17}$ ]] || fail "'$1' is not the id of an EFS file system, such as fs-0123456789abcdef0"
[[ $2 =~ ^[a-z]{2}(-[a-z]+)+-[0-9]$ ]] || fail "'$2' is not a region, such as us-east-1"

domain=amazonaws.com
case $2 in
  cn-*) domain=amazonaws.com.cn ;;
esac
place=$1.efs.$2.$domain:/

if ! [ -x /sbin/mount.efs ]; then
  sudo yum -q -y install amazon-efs-utils || echo 'amazon-efs-utils can not be installed: NFS without TLS is used' >&2
fi
if [ -x /sbin/mount.efs ]; then
  kind=efs options=tls,nosuid,nodev
else
  kind=nfs4 options=nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,nosuid,nodev
fi

if grep -q " $directory " /proc/mounts; then
  echo "something is mounted at $directory already"
  exit 0
fi
sudo mkdir -p "$directory"
before=
until said=$(sudo mount -t "$kind" -o "$options" "$place" "$directory" 2>&1); do
  [ "$said" = "$before" ] || printf '%s\n' "$said" >&2
  before=$said
  tries=$((tries - 1))
  if [ "$tries" = 0 ]; then
    fail "$1 can't be mounted. Does it have a mount target in this node's zone, with a security group that lets this" \
      "node in at port 2049, and does the VPC have DNS host names?"
  fi
  sleep "$pause_s"
done
printf '%s %s %s _netdev,%s 0 0\n' "$place" "$directory" "$kind" "$options" | sudo tee -a /etc/fstab > /dev/null
# A new file system is root's; one with data keeps its owner.
if [ -z "$(ls -A "$directory")" ]; then
  sudo chown hadoop:hadoop "$directory"
fi
echo "$1 is mounted at $directory"
