#!/usr/bin/env bash
# Runs a pretraining on GPUs under SLURM, one process per GPU; the hosts are auto-detected.
#
#   sbatch --nodes=2 launch/slurm.sh --config C --data D --workdir W [FLAGS OF bertjax.pretrain]
#   launch/slurm.sh --dry_run FLAGS         print the command of the job without running it
#
# Options of sbatch (partition, account, time) precede the script. Two minutes before the time limit
# the run saves a checkpoint, and the job is requeued to resume. `scancel JOB` ends it for good.
#SBATCH --job-name=bertjax
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=bertjax-%j.log
set -euo pipefail

# Each process sees all GPUs of its node and uses the one of its local rank. After a stop, the first
# process that ends with status 75 must not end the others, which may still be saving. If a process
# fails, the others notice within a minute; --wait ends those that hang.
command=(srun --kill-on-bad-exit=0 --wait=300 python -m bertjax.pretrain)
if [ "${1-}" = --dry_run ]; then
  shift
  printf '%q ' "${command[@]}" "$@"
  echo
  exit 0
fi
[ -n "${SLURM_JOB_ID-}" ] || { echo "error: start this script with sbatch, or add --dry_run" >&2; exit 2; }

status=0
"${command[@]}" "$@" || status=$?
if [ "$status" -eq 75 ]; then
  # The run was asked to stop and has saved a checkpoint.
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
