#!/usr/bin/env bash
# Prepares data with an array of SLURM jobs; the last job to finish joins the parts.
#
#   sbatch --array=0-15 launch/slurm_prepare.sh --input 'text/*' --tokenizer T --output D [FLAGS]
#   launch/slurm_prepare.sh --dry_run FLAGS     print the command of part 0 of 16 without running it
#
# All nodes must see input and output under the same paths. The array must start at 0.
#SBATCH --job-name=bertjax-prepare
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=16G
#SBATCH --requeue
#SBATCH --output=bertjax-prepare-%A-%a.log
set -euo pipefail

command=(python -m bertjax.prepare)
if [ "${1-}" = --dry_run ]; then
  shift
  printf '%q ' "${command[@]}" "$@" --shard 0/16
  echo
  exit 0
fi
[ -n "${SLURM_ARRAY_TASK_ID-}" ] || {
  echo "error: start this script with sbatch --array=0-15, or add --dry_run" >&2
  exit 2
}
[ "${SLURM_ARRAY_TASK_MIN-}" = 0 ] || { echo "error: the array must start at 0" >&2; exit 2; }
exec "${command[@]}" "$@" --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
