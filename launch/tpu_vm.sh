#!/usr/bin/env bash
# Manages a Cloud TPU slice and runs a pretraining on all its hosts.
#
#   launch/tpu_vm.sh COMMAND --name NAME --zone ZONE [OPTIONS] [-- FLAGS OF bertjax.pretrain]
#
#   create    request the slice and wait until it is ready
#   install   build a wheel of this checkout and install it on all hosts
#   run       start bertjax.pretrain on all hosts; the same command resumes it
#   keep      create, install and run; again after every preemption, until the run ends
#   watch     follow the output of the first host
#   stop      ask the run to save a checkpoint and stop, and wait until it has; keep ends, too
#   delete    delete the slice
#
#   --type TYPE        v3-32 (default): 16 chips; v3-128: 64
#   --version RUNTIME  software of the hosts (default tpu-ubuntu2204-base)
#   --project PROJECT  default: that of gcloud
#   --spot             cheaper, but may be preempted; keep goes on after it
#   --queued           wait in the queue of Cloud TPU instead of failing if none is available
#   --delete           for keep: delete the slice when the run has ended
#   --dry_run          print every command without running it
#
# --data and --workdir are in a bucket (gs://BUCKET/PATH), so that the hosts need no shared disk:
# data is copied to the disk of every host, checkpoints, metrics and the model are written to the
# bucket. Commands run in the home folder of the hosts; --config is configs/pretrain/X.py of this
# checkout.
set -euo pipefail

# shellcheck source=launch/common.sh
source "$(dirname "$0")/common.sh"

[ $# -gt 0 ] || { usage; exit 2; }
command=$1
shift
case $command in
  create | install | run | keep | watch | stop | delete) ;;
  -h | --help) usage; exit 0 ;;
  *) fail "unknown command '$command': create, install, run, keep, watch, stop, delete" ;;
esac

name='' zone='' type=v3-32 version=tpu-ubuntu2204-base project='' spot='' queued=''
delete='' dry_run='' flags=()
# Seconds between two looks of keep at the slice, and failures in a row after which it gives up.
POLL_SECONDS=${BERTJAX_POLL_SECONDS:-30} MAX_FAILURES=3
while [ $# -gt 0 ]; do
  case $1 in
    --spot) spot=1 ;;
    --queued) queued=1 ;;
    --delete) delete=1 ;;
    --dry_run) dry_run=1 ;;
    --)
      shift
      flags=("$@")
      break
      ;;
    --name | --zone | --type | --version | --project)
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
    --accelerator-type "$type" --runtime-version "$version" "${cheap[@]}" || return
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

# In keep, a failing command does not end the script, so each is followed by `|| return`.
install() {
  local checkout folder wheel changed
  checkout=$(cd "$(dirname "$0")/.." && pwd)
  folder=$(mktemp -d)
  changed=$(git -C "$checkout" status --short 2> /dev/null || true)
  if [ -n "$changed" ]; then
    echo "the wheel differs from commit $(git -C "$checkout" rev-parse --short HEAD):"
    echo "$changed"
  fi
  local built=''
  [ -e "$checkout/build" ] || built=$checkout/build  # setuptools leaves it there
  go python3 -m pip wheel -q --no-deps --wheel-dir "$folder" "$checkout" || return
  [ -z "$built" ] || rm -rf "$built"
  wheel=bertjax.whl
  [ -n "$dry_run" ] || wheel=$(basename "$folder"/bertjax-*.whl)
  go gcloud compute tpus tpu-vm scp "$folder/$wheel" "$name:$wheel" "${where[@]}" --worker=all || return
  # The system's Python may be older than 3.11; uv installs a newer one.
  on_hosts "export PATH=\$PATH:\$HOME/.local/bin && { command -v uv > /dev/null || python3 -m pip install -q --user uv; } && uv venv -q --clear --python 3.12 env && uv pip install -q --python env/bin/python \"bertjax[tpu,gcs] @ file://\$HOME/$wheel\""
}

# Starts the run in the background on all hosts; bertjax.status will hold its exit status.
run() {
  local program
  [ ${#flags[@]} -gt 0 ] || fail "$command needs the flags of bertjax.pretrain after --"
  program="env/bin/python -m bertjax.pretrain$(printf ' %q' "${flags[@]}")"
  on_hosts "{ ! kill -0 \$(cat bertjax.pid) 2>/dev/null || { echo 'a run is already active'; exit 1; }; } && rm -f bertjax.status bertjax.stopped && { setsid nohup bash -c $(printf %q "$program; echo \$? > bertjax.status") > bertjax.log 2>&1 < /dev/null & echo \$! > bertjax.pid; }"
}

delete() {
  if [ -n "$queued" ]; then
    go gcloud compute tpus queued-resources delete "$name" "${where[@]}" --force --quiet
  else
    go gcloud compute tpus tpu-vm delete "$name" "${where[@]}" --quiet
  fi
}

# Prints the state of the slice, such as READY or PREEMPTED; MISSING if there is none.
slice_state() {
  gcloud compute tpus tpu-vm describe "$name" "${where[@]}" --format 'value(state)' 2> /dev/null ||
    echo MISSING
}

# Prints what the hosts say of the run: running, stopped, or exit statuses such as "0 0".
run_state() {
  local said
  said=$(gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker=all --command \
    "echo; if [ -f bertjax.stopped ]; then echo run=stopped; elif [ -f bertjax.status ]; then echo run=\$(cat bertjax.status); elif kill -0 \$(cat bertjax.pid) 2>/dev/null; then echo run=running; else echo run=none; fi" \
    2> /dev/null) || { echo unreachable; return; }
  said=$(sed -n 's/^run=//p' <<< "$said")
  case $said in
    *running*) echo running ;;
    *stopped*) echo stopped ;;
    *) echo "${said//$'\n'/ }" ;;
  esac
}

# Waits until the run or the slice ends; prints finished, stopped (by stop), interrupted (by another
# signal, such as that of a maintenance), failed or lost (preempted).
wait_for_end() {
  local state slice
  while sleep "$POLL_SECONDS"; do
    slice=$(slice_state)
    case $slice in
      READY) ;;
      *) echo lost; return ;;
    esac
    state=$(run_state)
    case $state in
      running | unreachable) ;;
      stopped) echo stopped; return ;;
      *75*) echo interrupted; return ;;
      *[!\ 0]*) echo "failed: exit status $state"; return ;;
      *) echo finished; return ;;
    esac
  done
}

# Creates the slice if there is none, and deletes what a preemption has left of it.
ready_slice() {
  local slice
  slice=$(slice_state)
  [ "$slice" != READY ] || return 0
  # After a preemption, a queued request remains without a slice.
  [ "$slice" = MISSING ] && [ -z "$queued" ] || delete || true
  create
}

keep() {
  local end began failures=0 preemptions=0
  [ ${#flags[@]} -gt 0 ] || fail "keep needs the flags of bertjax.pretrain after --"
  if [ -n "$dry_run" ]; then
    create
    install
    run
    return
  fi
  while true; do
    began=$SECONDS
    if ready_slice && install && run; then end=$(wait_for_end); else end="failed: the slice"; fi
    [ $((SECONDS - began)) -lt 1800 ] || failures=0
    case $end in
      finished | stopped) break ;;
      interrupted) echo "$(date +%T) the run was interrupted by a signal: it is started again" ;;
      lost)
        failures=0 preemptions=$((preemptions + 1))
        echo "$(date +%T) the slice was preempted ($preemptions times so far): it is created again"
        ;;
      *)
        failures=$((failures + 1))
        echo "$(date +%T) $end ($failures times in a row)"
        on_hosts --worker=0 "tail -n 20 bertjax.log" || true
        [ "$failures" -lt "$MAX_FAILURES" ] || fail "the run has failed $failures times in a row; run: launch/tpu_vm.sh watch"
        ;;
    esac
  done
  echo "$(date +%T) the run is $end, after $preemptions preemptions"
  on_hosts --worker=0 "tail -n 20 bertjax.log"
  if [ -n "$delete" ]; then
    delete
  else
    echo "the slice still runs and costs money: launch/tpu_vm.sh delete --name $name --zone $zone"
  fi
}

case $command in
  create | install | run | keep | delete) "$command" ;;
  watch) on_hosts --worker=0 "tail -n 50 -f bertjax.log" ;;
  stop)
    on_hosts "touch bertjax.stopped && pkill -TERM -s \$(cat bertjax.pid) python; while kill -0 \$(cat bertjax.pid) 2>/dev/null; do sleep 2; done; tail -n 2 bertjax.log"
    ;;
esac
