# shellcheck shell=bash
# Describes an EMR cluster to programs for distributed training. Source it on the master node, as hadoop:
#   source metadata_setup.sh
# It writes the private address of each node, one in a line, to worker_ip_file on every node that accepts this login
# (with `ssh -A`, all do), and exports, here and in later logins:
#   DEEPLEARNING_WORKERS_PATH      that file
#   DEEPLEARNING_WORKERS_COUNT     the number of nodes
#   DEEPLEARNING_WORKER_GPU_COUNT  the number of GPUs of this node
# The nodes are the master and those that YARN reports as RUNNING. Source it again after the size has changed.

_dl_address() { # the IPv4 address of a host name; EC2's names contain it
  if [[ $1 =~ ^ip-([0-9]+)-([0-9]+)-([0-9]+)-([0-9]+)(\.|$) ]]; then
    printf '%s.%s.%s.%s\n' "${BASH_REMATCH[@]:1:4}"
  else
    getent ahostsv4 "$1" | awk '{ print $1; exit }'
  fi
}

_dl_names() { # the master, then the nodes of YARN
  local listed
  listed=$(yarn node -list 2> /dev/null) || {
    echo "metadata_setup.sh: 'yarn node -list' failed: is this the master node, and does YARN run?" >&2
    return 1
  }
  # The file may end without a newline, which sed would leave out, too.
  printf '%s\n' "$(sed -n 's/.*"masterPrivateDnsName" *: *"\([^"]*\)".*/\1/p' /mnt/var/lib/info/job-flow.json)"
  awk '$2 == "RUNNING" { sub(/:.*/, "", $1); print $1 }' <<< "$listed"
}

_dl_send() { # copy the file to another node, which may refuse
  ssh -o BatchMode=yes -o ConnectTimeout=10 -o StrictHostKeyChecking=accept-new "$1" "cat > '$2.new' && mv -f '$2.new' '$2'" < "$2" 2> /dev/null
}

_dl_setup() {
  local file=/home/hadoop/worker_ip_file names name addresses='' address own gpus refused='' line
  names=$(_dl_names) || return 1
  for name in $names; do
    address=$(_dl_address "$name")
    [ -n "$address" ] || { echo "metadata_setup.sh: the name $name has no address" >&2; return 1; }
    addresses+=$address$'\n'
  done
  sort -u -t . -k 1,1n -k 2,2n -k 3,3n -k 4,4n > "$file.new" <<< "${addresses%$'\n'}" || return 1
  mv -f "$file.new" "$file" || return 1
  own=$(_dl_address "$(hostname)")
  for address in $(< "$file"); do
    [ "$address" = "$own" ] || _dl_send "$address" "$file" || refused+=" $address"
  done
  gpus=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU ')
  DEEPLEARNING_WORKERS_PATH=$file DEEPLEARNING_WORKERS_COUNT=$(wc -l < "$file") DEEPLEARNING_WORKER_GPU_COUNT=$gpus
  export DEEPLEARNING_WORKERS_PATH DEEPLEARNING_WORKERS_COUNT DEEPLEARNING_WORKER_GPU_COUNT
  touch ~/.bashrc
  sed -i '/^export DEEPLEARNING_WORKER[A-Z_]*=/d' ~/.bashrc
  for line in WORKERS_PATH WORKERS_COUNT WORKER_GPU_COUNT; do
    name=DEEPLEARNING_$line
    echo "export $name=${!name}" | tee -a ~/.bashrc
  done
  [ -z "$refused" ] || echo "metadata_setup.sh: these nodes accept no login and have no $file:$refused" >&2
}

if _dl_setup; then
  unset -f _dl_address _dl_names _dl_send _dl_setup
else
  unset -f _dl_address _dl_names _dl_send _dl_setup
  false
fi
