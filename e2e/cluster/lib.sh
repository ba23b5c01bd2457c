# What the scripts of the cluster share: where things are, and how a program of the node is started and awaited.
# Sourced, never run.
# shellcheck shell=bash disable=SC2034
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
state="$(cd "$here/../.." && pwd)/.cache/cluster"

LINK=weft-cluster # the machine's end of the cable to the node; its alias says "PID STATE" of the cluster that runs
CGROUP=weft-cluster
NODE_ADDRESS=10.243.0.1
HOST_ADDRESS=10.243.0.2
POD_NETWORK=10.244.0.0/24
SERVICE_NETWORK=10.96.0.0/16
COMPONENTS=(etcd kube-apiserver kube-controller-manager kube-scheduler containerd kubelet kube-proxy)

say() { echo "cluster: $*"; }
die() { echo "cluster: $*" >&2; exit 1; }

need_root() { [ "$(id -u)" -eq 0 ] || die "this needs root: it makes namespaces and mounts"; }

# Process 1 of the node and the state folder that it belongs to, as "PID STATE"; nothing if no cluster runs on this machine.
# The link goes away with the last process of the node's network namespace, so it cannot be stale.
running_cluster() { cat "/sys/class/net/$LINK/ifalias" 2>/dev/null || true; }

# Process 1 of our node; fails if it does not run.
node_pid() {
  local pid owner
  read -r pid owner < <(running_cluster) || return 1
  [ "$owner" = "$state" ] && echo "$pid"
}

# One up, down or restart at a time in a checkout.
lock() {
  mkdir -p "$state"
  exec 8>"$state/lock"
  flock -w 600 8 || die "another cluster command of this checkout has been running for ten minutes"
}

# Runs a command in the namespaces of the node.
node() {
  local pid
  pid=$(node_pid) || die "no cluster of this checkout is running: make cluster-up"
  nsenter --target "$pid" --mount --net --pid -- "$@"
}

kubectl() { "$state/bin/kubectl" --kubeconfig "$state/kubeconfig" --request-timeout=10s "$@"; }

# Whether a component runs; process numbers are those of the node's own process namespace.
is_running() { # NAME
  node bash -c '[ "$(cat "/proc/$(cat "$1")/comm")" = "${2:0:15}" ]' - "$state/run/$1.pid" "$1" 2>/dev/null
}

start() { # NAME PROGRAM ARGUMENT...
  local name=$1
  is_running "$name" && return
  node bash -c 'pidfile=$1 log=$2; shift 2; setsid "$@" </dev/null >>"$log" 2>&1 8>&- & echo $! >"$pidfile"' - \
    "$state/run/$name.pid" "$state/log/$name.log" "${@:2}"
  for _ in {1..20}; do # until the process has become the program
    is_running "$name" && return
    sleep 0.05
  done
  fail "$name" "ended at once"
}

# Waits for a command to succeed. Fails at once, with the end of its log, when the component has ended.
await() { # NAME SECONDS COMMAND...
  local name=$1 seconds=$2 deadline=$((SECONDS + $2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    if ! is_running "$name"; then
      fail "$name" "has ended"
    elif [ $SECONDS -ge $deadline ]; then
      fail "$name" "is not ready after $seconds seconds"
    fi
    sleep 0.2
  done
}

fail() { # NAME WHAT
  echo "cluster: $1 $2. The end of $state/log/$1.log:" >&2
  tail -n 20 "$state/log/$1.log" >&2
  exit 1
}

listens() { node bash -c ": </dev/tcp/127.0.0.1/$1"; }
