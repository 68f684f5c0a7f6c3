#!/usr/bin/env bash
# Runs a pretraining, or the preparation of its data, as an indexed Kubernetes job.
#
#   launch/kubernetes.sh pretrain --name NAME --image IMAGE --hosts N [OPTIONS] -- FLAGS
#   launch/kubernetes.sh prepare  --name NAME --image IMAGE --hosts N [OPTIONS] -- FLAGS
#   launch/kubernetes.sh watch    --name NAME
#   launch/kubernetes.sh delete   --name NAME
#
#   --image IMAGE           image with bertjax, built from launch/Dockerfile
#   --hosts N               number of pods; for prepare, the number of parts
#   --gpus N                GPUs per pod (default 8; prepare: 0)
#   --service_account NAME  Kubernetes service account of the pods, which may use the buckets
#   --claim NAME            a persistent volume claim (ReadWriteMany) that all pods mount at /bertjax;
#                           not needed if data and workdir are in buckets
#   --namespace NAME        default: that of kubectl
#   --dry_run               print the manifest and every command without running them
#
# FLAGS are the flags of bertjax.pretrain or bertjax.prepare. Kubernetes 1.31 or newer is needed.
#
# If a pod is evicted, for example because a spot node is preempted, the pods of a pretraining save a
# checkpoint together, end, and are started again. If a pod is lost without warning, the others end
# within a minute, and all are started again. Evictions do not count as failures; a job fails after
# 20 failures per pod, or at once if its flags are wrong.
set -euo pipefail

# shellcheck source=launch/common.sh
source "$(dirname "$0")/common.sh"

[ $# -gt 0 ] || { usage; exit 2; }
command=$1
shift
case $command in
  pretrain | prepare | watch | delete) ;;
  -h | --help) usage; exit 0 ;;
  *) fail "unknown command '$command': pretrain, prepare, watch, delete" ;;
esac

name='' image='' hosts='' gpus='' claim='' service_account='' namespace='' dry_run='' flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --dry_run) dry_run=1 ;;
    --)
      shift
      flags=("$@")
      break
      ;;
    --name | --image | --hosts | --gpus | --claim | --service_account | --namespace)
      [ $# -gt 1 ] || fail "$1 needs a value"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    *) fail "unknown option '$1'; flags of the program follow --" ;;
  esac
  shift
done
[[ $name =~ ^[a-z]([a-z0-9-]{0,48}[a-z0-9])?$ ]] ||
  fail "--name '$name': use at most 50 lower-case letters, digits and -, and begin with a letter"
[[ $gpus =~ ^[0-9]*$ ]] || fail "--gpus '$gpus': use a number"

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

# Prints the value of a flag of the program, if it is set.
value_of() {
  local previous='' word
  for word in "${flags[@]}"; do
    case $word in "--$1="*) echo "${word#*=}" ;; esac
    [ "$previous" != "--$1" ] || echo "$word"
    previous=$word
  done
}

# Refuses files that would be lost with a pod.
check_places() {
  local flag value
  [ -z "$claim" ] || return 0
  for flag in data workdir output; do
    value=$(value_of "$flag")
    [[ -z $value || $value == *://* ]] ||
      fail "--$flag $value is on the disk of a pod, which is lost with the pod: use a bucket (gs:// or s3://), or a path under /bertjax with --claim"
  done
}

# The rules of the Job say which ends of a pod are failures: not evictions, and not status 75, with
# which a run ends after a signal. Status 2 means wrong flags, 126 and 127 an image without bertjax.
# A pod is replaced only after it has ended, because two processes of one rank would disturb the run.
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
    batch.kubernetes.io/job-name: $name
---
apiVersion: batch/v1
kind: Job
metadata:
  name: $name
spec:
  completionMode: Indexed
  completions: $hosts
  parallelism: $hosts
  backoffLimit: $((20 * hosts))
  podReplacementPolicy: Failed
  podFailurePolicy:
    rules:
      - action: Ignore
        onPodConditions:
          - type: DisruptionTarget
            status: "True"
      - action: Ignore
        onExitCodes:
          containerName: bertjax
          operator: In
          values: [75]
      - action: FailJob
        onExitCodes:
          containerName: bertjax
          operator: In
          values: [2, 126, 127]
END
  # The first process writes the model and ends last. If another pod were lost at that moment, its
  # replacement would wait for the first one forever.
  if [ "$command" = pretrain ]; then
    cat <<END
  successPolicy:
    rules:
      - succeededIndexes: "0"
END
  fi
  cat <<END
  template:
    spec:
      subdomain: $name
      restartPolicy: Never
      terminationGracePeriodSeconds: 300
END
  [ -z "$service_account" ] || echo "      serviceAccountName: $service_account"
  if [ -n "$claim" ]; then
    # The user of the image must be able to write to the volume.
    cat <<END
      securityContext:
        fsGroup: 1000
        fsGroupChangePolicy: OnRootMismatch
END
  fi
  cat <<END
      containers:
        - name: bertjax
          image: $image
          command: ["bash", "-c"]
          args:
            - |
              $(pod_command)
          volumeMounts:
            - name: memory
              mountPath: /dev/shm
END
  if [ -n "$claim" ]; then
    cat <<END
            - name: shared
              mountPath: /bertjax
END
  fi
  if [ "$gpus" -gt 0 ]; then
    cat <<END
          resources:
            limits:
              nvidia.com/gpu: $gpus
END
  fi
  cat <<END
      volumes:
        - name: memory
          emptyDir:
            medium: Memory
END
  if [ -n "$claim" ]; then
    cat <<END
        - name: shared
          persistentVolumeClaim:
            claimName: $claim
END
  fi
}

# Deletes a job of this name that has ended, since kubectl apply would change nothing in it.
remove_ended_job() {
  local state
  state=$("${kubectl[@]}" get job "$name" --ignore-not-found \
    --output 'jsonpath={.metadata.name} {.status.conditions[?(@.status=="True")].type}')
  case $state in
    '') ;;
    *Complete* | *Failed*) go "${kubectl[@]}" delete job "$name" ;;
    *) fail "the job $name is active: follow it with watch, or end it with delete" ;;
  esac
}

# Follows the newest pod of the first process: ended pods are kept until the job is deleted.
watch() {
  local pod="POD"
  local ask=("${kubectl[@]}" get pods --output name --sort-by .metadata.creationTimestamp
    --selector "batch.kubernetes.io/job-name=$name,batch.kubernetes.io/job-completion-index=0")
  if [ -n "$dry_run" ]; then
    go "${ask[@]}"
  else
    pod=$("${ask[@]}" | tail -n 1)
    [ -n "$pod" ] || fail "the job $name has no pod yet"
  fi
  go "${kubectl[@]}" logs --follow --tail 50 "$pod"
}

case $command in
  pretrain | prepare)
    [ -n "$image" ] && [[ $hosts =~ ^[1-9][0-9]*$ ]] || fail "--image and --hosts (at least 1) are required"
    [ ${#flags[@]} -gt 0 ] || fail "$command needs its flags after --"
    if [ -z "$gpus" ]; then
      gpus=8
      [ "$command" = pretrain ] || gpus=0
    fi
    check_places
    [ -n "$dry_run" ] || remove_ended_job
    file=$(mktemp)
    trap 'rm -f "$file"' EXIT
    manifest > "$file"
    [ -z "$dry_run" ] || cat "$file"
    go "${kubectl[@]}" apply -f "$file"
    ;;
  watch) watch ;;
  delete) go "${kubectl[@]}" delete job,service "$name" ;;
esac
