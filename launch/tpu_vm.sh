#!/usr/bin/env bash
# A pretraining on a Cloud TPU slice: every host of it, from creation to deletion.
#
#   launch/tpu_vm.sh COMMAND --name NAME --zone ZONE [OPTIONS] [-- FLAGS OF bertjax.pretrain]
#
#   create    ask for the slice and wait until it is there
#   install   copy this checkout to all hosts and install it there
#   mount     mount the shared folder, where the workdir must lie (--nfs)
#   data      copy prepared data to the disk of every host (--data)
#   run       start bertjax.pretrain on all hosts; give the same again to resume
#   watch     follow the output of the first host
#   stop      ask the run to save a checkpoint and stop, and wait until it has
#   delete    give the slice back
#
#   --type TYPE        v3-32 (default): 16 chips; v3-128: 64
#   --version RUNTIME  software of the hosts (default tpu-ubuntu2204-base)
#   --project PROJECT  default: gcloud's
#   --spot             cheaper, may be taken away at any time; then delete, create, ..., run again
#   --queued           wait in the queue of Cloud TPU instead of failing where there is none free
#   --nfs HOST:/PATH   for mount: what to mount at /mnt/bertjax, a Filestore share for one
#   --data gs://PATH   for data: what bertjax.prepare wrote; becomes data on the hosts
#   --dry_run          print every command, run none
#
# Commands run in the home folder of the hosts: --data data, --config configs/pretrain/X.py of this
# package, or bertjax/FILE of this checkout as it was committed.
set -euo pipefail

# shellcheck source=launch/common.sh
source "$(dirname "$0")/common.sh"

[ $# -gt 0 ] || { usage; exit 2; }
command=$1
shift
case $command in
  create | install | mount | data | run | watch | stop | delete) ;;
  -h | --help) usage; exit 0 ;;
  *) fail "unknown command '$command': create, install, mount, data, run, watch, stop, delete" ;;
esac

name='' zone='' type=v3-32 version=tpu-ubuntu2204-base project='' spot='' queued='' nfs='' data=''
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
    --name | --zone | --type | --version | --project | --nfs | --data)
      [ $# -gt 1 ] || fail "$1 needs a value"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    *) fail "unknown option '$1'; flags of bertjax.pretrain stand behind --" ;;
  esac
  shift
done
[ -n "$name" ] && [ -n "$zone" ] || fail "give --name and --zone"

where=(--zone "$zone")
[ -z "$project" ] || where+=(--project "$project")

# A command on all hosts, or on the one given first as --worker=N.
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
    case $state in FAILED | SUSPENDED) fail "the request for $name is $state: delete it and ask again" ;; esac
    echo "$name is $state"
    [ "$state" = ACTIVE ] || sleep 30
  done
}

install() {
  local checkout archive
  checkout=$(cd "$(dirname "$0")/.." && pwd)
  archive=$(mktemp -d)/bertjax.tar.gz
  # What git knows of, so that runs and environments stay here.
  go git -C "$checkout" archive --format=tar.gz --prefix=bertjax/ --output "$archive" HEAD
  go gcloud compute tpus tpu-vm scp "$archive" "$name:bertjax.tar.gz" "${where[@]}" --worker=all
  # The system's Python may be older than 3.11; uv brings its own.
  on_hosts "rm -rf bertjax && tar xzf bertjax.tar.gz && python3 -m pip install -q --user uv && ~/.local/bin/uv venv -q --clear --python 3.12 env && ~/.local/bin/uv pip install -q --python env/bin/python -e 'bertjax[tpu]'"
}

case $command in
  create) create ;;
  install) install ;;
  mount)
    [ -n "$nfs" ] || fail "mount needs --nfs HOST:/PATH, a folder that all hosts can mount"
    on_hosts "sudo apt-get -qq install -y nfs-common && sudo mkdir -p /mnt/bertjax && { mountpoint -q /mnt/bertjax || sudo mount -t nfs $(printf %q "$nfs") /mnt/bertjax; } && sudo chmod 777 /mnt/bertjax"
    ;;
  data)
    [ -n "$data" ] || fail "data needs --data gs://PATH, what bertjax.prepare wrote"
    on_hosts "mkdir -p data && gcloud storage rsync --recursive $(printf %q "$data") data"
    ;;
  run)
    [ ${#flags[@]} -gt 0 ] || fail "run needs the flags of bertjax.pretrain behind --"
    run="python -m bertjax.pretrain$(printf ' %q' "${flags[@]}")"
    on_hosts "{ ! kill -0 \$(cat bertjax.pid) 2>/dev/null || { echo 'it runs already'; exit 1; }; } && { setsid nohup env/bin/$run > bertjax.log 2>&1 < /dev/null & echo \$! > bertjax.pid; }"
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
