#!/usr/bin/env bash
# Manages a Cloud TPU slice and runs a pretraining on all its hosts.
#
#   launch/tpu_vm.sh COMMAND --name NAME --zone ZONE [OPTIONS] [-- FLAGS OF bertjax.pretrain]
#
#   create    request the slice and wait until it is ready
#   install   copy this checkout to all hosts and install it there
#   mount     mount the shared folder for the workdir (--nfs)
#   run       start bertjax.pretrain on all hosts; the same command resumes it
#   watch     follow the output of the first host
#   stop      ask the run to save a checkpoint and stop, and wait until it has
#   delete    delete the slice
#
#   --type TYPE        v3-32 (default): 16 chips; v3-128: 64
#   --version RUNTIME  software of the hosts (default tpu-ubuntu2204-base)
#   --project PROJECT  default: that of gcloud
#   --spot             cheaper, but may be preempted; then delete, create, ..., run again
#   --queued           wait in the queue of Cloud TPU instead of failing if none is available
#   --nfs HOST:/PATH   for mount: the share to mount at /mnt/bertjax, for example Filestore
#   --dry_run          print every command without running it
#
# Commands run in the home folder of the hosts. --data gs://PATH, the output of bertjax.prepare, is
# copied to the disk of every host; --config is configs/pretrain/X.py of the package or bertjax/FILE
# of this checkout as committed.
set -euo pipefail

# shellcheck source=launch/common.sh
source "$(dirname "$0")/common.sh"

[ $# -gt 0 ] || { usage; exit 2; }
command=$1
shift
case $command in
  create | install | mount | run | watch | stop | delete) ;;
  -h | --help) usage; exit 0 ;;
  *) fail "unknown command '$command': create, install, mount, run, watch, stop, delete" ;;
esac

name='' zone='' type=v3-32 version=tpu-ubuntu2204-base project='' spot='' queued='' nfs=''
dry_run='' flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --spot) spot=1 ;;
    --queued) queued=1 ;;
    --dry_run) dry_run=1 ;;
    --)
      shift
      flags=("$@")
      break
      ;;
    --name | --zone | --type | --version | --project | --nfs)
      [ $# -gt 1 ] || fail "$1 needs a value"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    *) fail "unknown option '$1'; flags of bertjax.pretrain follow --" ;;
  esac
  shift
done
[ -n "$name" ] && [ -n "$zone" ] || fail "--name and --zone are required"

where=(--zone "$zone")
[ -z "$project" ] || where+=(--project "$project")

# Runs a command on all hosts, or on one host with --worker=N as the first argument.
on_hosts() {
  local worker=--worker=all
  case $1 in --worker=*) worker=$1; shift ;; esac
  go gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" "$worker" --command "$1"
}

create() {
  local cheap=()
  [ -z "$spot" ] || cheap=(--spot)
  if [ -z "$queued" ]; then
    go gcloud compute tpus tpu-vm create "$name" "${where[@]}" --accelerator-type "$type" \
      --version "$version" "${cheap[@]}"
    return
  fi
  go gcloud compute tpus queued-resources create "$name" --node-id "$name" "${where[@]}" \
    --accelerator-type "$type" --runtime-version "$version" "${cheap[@]}"
  local state='' ask=(gcloud compute tpus queued-resources describe "$name" "${where[@]}"
    --format 'value(state.state)')
  if [ -n "$dry_run" ]; then
    go "${ask[@]}"
    return
  fi
  until [ "$state" = ACTIVE ]; do
    state=$("${ask[@]}")
    case $state in FAILED | SUSPENDED) fail "the request for $name is $state: delete it and create it again" ;; esac
    echo "$name is $state"
    [ "$state" = ACTIVE ] || sleep 30
  done
}

install() {
  local checkout archive
  checkout=$(cd "$(dirname "$0")/.." && pwd)
  archive=$(mktemp -d)/bertjax.tar.gz
  # Only files tracked by git, without runs and environments.
  go git -C "$checkout" archive --format=tar.gz --prefix=bertjax/ --output "$archive" HEAD
  go gcloud compute tpus tpu-vm scp "$archive" "$name:bertjax.tar.gz" "${where[@]}" --worker=all
  # The system's Python may be older than 3.11; uv installs a newer one.
  on_hosts "rm -rf bertjax && tar xzf bertjax.tar.gz && python3 -m pip install -q --user uv && ~/.local/bin/uv venv -q --clear --python 3.12 env && ~/.local/bin/uv pip install -q --python env/bin/python -e 'bertjax[tpu,gcs]'"
}

case $command in
  create) create ;;
  install) install ;;
  mount)
    [ -n "$nfs" ] || fail "mount needs --nfs HOST:/PATH, a share that all hosts can mount"
    on_hosts "sudo apt-get -qq install -y nfs-common && sudo mkdir -p /mnt/bertjax && { mountpoint -q /mnt/bertjax || sudo mount -t nfs $(printf %q "$nfs") /mnt/bertjax; } && sudo chmod 777 /mnt/bertjax"
    ;;
  run)
    [ ${#flags[@]} -gt 0 ] || fail "run needs the flags of bertjax.pretrain after --"
    run="python -m bertjax.pretrain$(printf ' %q' "${flags[@]}")"
    on_hosts "{ ! kill -0 \$(cat bertjax.pid) 2>/dev/null || { echo 'a run is already active'; exit 1; }; } && { setsid nohup env/bin/$run > bertjax.log 2>&1 < /dev/null & echo \$! > bertjax.pid; }"
    ;;
  watch) on_hosts --worker=0 "tail -n 50 -f bertjax.log" ;;
  stop)
    on_hosts "kill -TERM \$(cat bertjax.pid) && while kill -0 \$(cat bertjax.pid) 2>/dev/null; do sleep 2; done; tail -n 2 bertjax.log"
    ;;
  delete)
    if [ -n "$queued" ]; then
      go gcloud compute tpus queued-resources delete "$name" "${where[@]}" --force --quiet
    else
      go gcloud compute tpus tpu-vm delete "$name" "${where[@]}" --quiet
    fi
    ;;
esac
