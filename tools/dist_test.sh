#!/usr/bin/env bash
# Evaluate on several GPUs (or CPU processes) of one machine, or of several.
# Usage: tools/dist_test.sh CONFIG CHECKPOINT PROCESSES [options of tools/test.py]
# Several machines: NNODES, NODE_RANK, MASTER_ADDR and PORT in the environment of each.
set -euo pipefail
if [ $# -lt 3 ]; then sed -n '2,4s/^# //p' "$0" >&2; exit 2; fi
CONFIG=$1 CHECKPOINT=$2 PROCESSES=$3
shift 3
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$PROCESSES" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    "$(dirname "$0")/test.py" "$CONFIG" "$CHECKPOINT" --launcher pytorch "$@"
