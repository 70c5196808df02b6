#!/usr/bin/env bash
# Train through SLURM.
# Usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG [options of tools/train.py]
# GPUS (8), GPUS_PER_NODE (8), CPUS_PER_TASK (5) and SRUN_ARGS come from the environment.
set -euo pipefail
if [ $# -lt 3 ]; then sed -n '2,4s/^# //p' "$0" >&2; exit 2; fi
PARTITION=$1 JOB_NAME=$2 CONFIG=$3
shift 3
GPUS=${GPUS:-8}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
if [ "$GPUS" -lt "$GPUS_PER_NODE" ]; then GPUS_PER_NODE=$GPUS; fi
# shellcheck disable=SC2086  # SRUN_ARGS is a list of words
exec srun -p "$PARTITION" --job-name="$JOB_NAME" --gres="gpu:$GPUS_PER_NODE" \
    --ntasks="$GPUS" --ntasks-per-node="$GPUS_PER_NODE" --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    "${PYTHON:-python}" -u "$(dirname "$0")/train.py" "$CONFIG" --launcher slurm "$@"
