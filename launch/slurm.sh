#!/usr/bin/env bash
# A pretraining on GPUs under SLURM, one process a GPU; they find each other by themselves.
#
#   sbatch --nodes=2 launch/slurm.sh --config C --data D --workdir W [FLAGS OF bertjax.pretrain]
#   launch/slurm.sh --dry_run FLAGS         print the command of the job, run nothing
#
# Options of sbatch (partition, account, time) stand before the script. Two minutes before its time
# is over the run saves a checkpoint, and the job goes back into the queue to resume.
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

# One process for each GPU, which sees all GPUs of its node and takes the one of its local rank.
command=(srun --kill-on-bad-exit=1 python -m bertjax.pretrain)
if [ "${1-}" = --dry_run ]; then
  shift
  printf '%q ' "${command[@]}" "$@"
  echo
  exit 0
fi
[ -n "${SLURM_JOB_ID-}" ] || { echo "error: start it with sbatch, or add --dry_run" >&2; exit 2; }

status=0
"${command[@]}" "$@" || status=$?
if [ "$status" -eq 130 ]; then
  # It was asked to stop and has saved its state.
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
