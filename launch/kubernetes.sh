#!/usr/bin/env bash
# Runs a pretraining, or the preparation of its data, as an indexed Kubernetes job.
#
#   launch/kubernetes.sh pretrain --name NAME --image IMAGE --hosts N [OPTIONS] -- FLAGS
#   launch/kubernetes.sh prepare  --name NAME --image IMAGE --hosts N [OPTIONS] -- FLAGS
#   launch/kubernetes.sh watch    --name NAME
#   launch/kubernetes.sh delete   --name NAME
#
#   --image IMAGE     with Python and bertjax: FROM python:3.12, RUN pip install 'bertjax[cuda13]'
#   --hosts N         number of pods; for prepare, the number of parts
#   --gpus N          GPUs per pod (default 8; prepare: 0)
#   --claim NAME      a persistent volume claim that all pods mount at /bertjax (ReadWriteMany):
#                     for data and workdir (default bertjax)
#   --namespace NAME  default: that of kubectl
#   --dry_run         print the manifest and every command without running them
#
# FLAGS are the flags of bertjax.pretrain or bertjax.prepare. If a pod is lost, all pods restart and
# the run resumes from its last checkpoint.
set -euo pipefail

# shellcheck source=launch/common.sh
source "$(dirname "$0")/common.sh"

[ $# -gt 0 ] || { usage; exit 2; }
command=$1
shift
case $command in
  pretrain | prepare | watch | delete) ;;
  *) fail "unknown command '$command': pretrain, prepare, watch, delete" ;;
esac

name='' image='' hosts='' gpus='' claim=bertjax namespace='' dry_run='' flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --dry_run) dry_run=1 ;;
    --)
      shift
      flags=("$@")
      break
      ;;
    --name | --image | --hosts | --gpus | --claim | --namespace)
      [ $# -gt 1 ] || fail "$1 needs a value"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    *) fail "unknown option '$1'; flags of the program follow --" ;;
  esac
  shift
done
[[ $name =~ ^[a-z]([a-z0-9-]*[a-z0-9])?$ ]] || fail "--name '$name': use lower-case letters, digits and -"

kubectl=(kubectl)
[ -z "$namespace" ] || kubectl+=(--namespace "$namespace")

# Prints the command of a pod; $JOB_COMPLETION_INDEX is its rank.
pod_command() {
  printf 'exec python -m bertjax.%s' "$command"
  printf ' %q' "${flags[@]}"
  # shellcheck disable=SC2016  # the shell of the pod expands the variable
  if [ "$command" = prepare ]; then
    printf ' --shard "$JOB_COMPLETION_INDEX/%s"' "$hosts"
  elif [ "$hosts" -gt 1 ]; then
    printf ' --distributed.coordinator_address %s-0.%s:8476' "$name" "$name"
    printf ' --distributed.num_processes %s' "$hosts"
    printf ' --distributed.process_id "$JOB_COMPLETION_INDEX"'
  fi
}

manifest() {
  cat <<END
apiVersion: v1
kind: Service
metadata:
  name: $name
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    job-name: $name
---
apiVersion: batch/v1
kind: Job
metadata:
  name: $name
spec:
  completionMode: Indexed
  completions: $hosts
  parallelism: $hosts
  backoffLimit: 100
  template:
    spec:
      subdomain: $name
      restartPolicy: Never
      terminationGracePeriodSeconds: 300
      containers:
        - name: bertjax
          image: $image
          command: ["bash", "-c"]
          args:
            - |
              $(pod_command)
          volumeMounts:
            - name: shared
              mountPath: /bertjax
            - name: memory
              mountPath: /dev/shm
END
  if [ "$gpus" -gt 0 ]; then
    cat <<END
          resources:
            limits:
              nvidia.com/gpu: $gpus
END
  fi
  cat <<END
      volumes:
        - name: shared
          persistentVolumeClaim:
            claimName: $claim
        - name: memory
          emptyDir:
            medium: Memory
END
}

case $command in
  pretrain | prepare)
    [ -n "$image" ] && [[ $hosts =~ ^[1-9][0-9]*$ ]] || fail "--image and --hosts (at least 1) are required"
    [ ${#flags[@]} -gt 0 ] || fail "$command needs its flags after --"
    if [ -z "$gpus" ]; then
      gpus=8
      [ "$command" = pretrain ] || gpus=0
    fi
    file=$(mktemp)
    manifest > "$file"
    [ -z "$dry_run" ] || cat "$file"
    go "${kubectl[@]}" apply -f "$file"
    ;;
  watch) go "${kubectl[@]}" logs --follow --selector "batch.kubernetes.io/job-completion-index=0,job-name=$name" ;;
  delete) go "${kubectl[@]}" delete job,service "$name" ;;
esac
