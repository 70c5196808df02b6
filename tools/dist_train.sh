#!/usr/bin/env bash
# Train on several GPUs (or CPU processes) of one machine, or of several.
# Usage: tools/dist_train.sh CONFIG PROCESSES [options of tools/train.py]
# Several machines: NNODES, NODE_RANK, MASTER_ADDR and PORT in the environment of each.
set -euo pipefail
if [ $# -lt 2 ]; then sed -n '2,4s/^# //p' "$0" >&2; exit 2; fi
CONFIG=$1 PROCESSES=$2
shift 2
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$PROCESSES" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    "$(dirname "$0")/train.py" "$CONFIG" --launcher pytorch "$@"
