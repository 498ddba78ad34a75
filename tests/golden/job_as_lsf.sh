#!/bin/bash
#BSUB -J Llama-8b
#BSUB -o Llama-8b.%J.log
#BSUB -n 384
#BSUB -R "span[ptile=96]"
#BSUB -gpu "num=8/host:j_exclusive=yes"
#BSUB -R "rusage[mem=488282MB/host]"
#BSUB -R "select[hname!='node7' && hname!='node9']"
#BSUB -W 720
#BSUB -wa TERM -wt 5
#BSUB -H
# any accelerator is accepted: add `:gmodel=` and LSF's name of H100 to `-gpu` to require it
# Where there is jsrun instead of blaunch: jsrun --rs_per_host 1 --tasks_per_rs 1 /bin/bash "$program" ...
set -euo pipefail
: "${HF_TOKEN:?is not set where bsub was called}"
mapfile -t hosts < <(awk '!seen[$1]++ {print $1}' "$LSB_DJOB_HOSTFILE")
program=$(mktemp "$HOME/.trainworks-$LSB_JOBID-XXXXXX")
trap 'rm -f "$program"' EXIT
cat > "$program" <<'END_OF_PROGRAM'
set -euo pipefail
export NODE_RANK=$1
shift
export MASTER_ADDR=$1
export WANDB_MODE=offline
export SKYPILOT_NODE_IPS="$(printf '%s\n' "$@")"
export WORLD_SIZE=32
export LOCAL_WORLD_SIZE=8
export GROUP_RANK="${NODE_RANK}"
export MASTER_PORT=29500
export TORCHRUN_ARGS="--nnodes=4 --node-rank=${NODE_RANK} --master-addr=${MASTER_ADDR} --master-port=29500"
export PET_NNODES=4
export PET_NODE_RANK="${NODE_RANK}"
export PET_MASTER_ADDR="${MASTER_ADDR}"
export PET_MASTER_PORT=29500
export SKYPILOT_NODE_RANK="${NODE_RANK}"
export SKYPILOT_NUM_NODES=4
export SKYPILOT_NUM_GPUS_PER_NODE=8
export OMP_NUM_THREADS=12
export PYTHONUNBUFFERED=1
SKYPILOT_SETUP_NODE_RANK="${SKYPILOT_NODE_RANK-}" SKYPILOT_SETUP_NODE_IPS="${SKYPILOT_NODE_IPS-}" SKYPILOT_SETUP_NUM_GPUS_PER_NODE="${SKYPILOT_NUM_GPUS_PER_NODE-}" /bin/bash -euo pipefail -c 'pip install -r requirements.txt'
code=0 patience=5 groups=()
trap 'code=143 patience=300' TERM
set -m
exec {errors}>&2 2>/dev/null
for ((local_rank = 0; local_rank < 8; local_rank++)); do
  (
    exec 2>&"$errors" {errors}>&-
    trap - TERM
    export LOCAL_RANK=$local_rank
    export RANK=$((NODE_RANK * 8 + LOCAL_RANK))
    exec /bin/bash -euo pipefail -c 'python train.py --lr 1e-4 --name "$RUN_NAME"'
  ) &
  groups+=($!)
done
set +m
exec 2>&"$errors" {errors}>&-
stop() { for group in "${groups[@]}"; do kill -s "$1" -- "-$group" 2>/dev/null || true; done; }
alive() { for group in "${groups[@]}"; do ! kill -0 -- "-$group" 2>/dev/null || return 0; done; return 1; }
ranks=("${groups[@]}")
while [ "${#ranks[@]}" -gt 0 ] && [ "$code" = 0 ]; do
  sleep 0.2 || true
  for index in "${!ranks[@]}"; do
    ! kill -0 "${ranks[$index]}" 2>/dev/null || continue
    wait "${ranks[$index]}" || { code=$?; break; }
    unset "ranks[$index]"
  done
done
if [ "$code" != 0 ]; then
  stop TERM
  for ((tenth = 0; tenth < 10 * patience; tenth++)); do alive || break; sleep 0.1 || true; done
  stop KILL
fi
exit "$code"
END_OF_PROGRAM
code=0 patience=310 groups=()
trap 'code=143 patience=310' TERM
set -m
exec {errors}>&2 2>/dev/null
for node in "${!hosts[@]}"; do
  blaunch "${hosts[$node]}" /bin/bash "$program" "$node" "${hosts[@]}" 2>&"$errors" {errors}>&- &
  groups+=($!)
done
set +m
exec 2>&"$errors" {errors}>&-
stop() { for group in "${groups[@]}"; do kill -s "$1" -- "-$group" 2>/dev/null || true; done; }
alive() { for group in "${groups[@]}"; do ! kill -0 -- "-$group" 2>/dev/null || return 0; done; return 1; }
ranks=("${groups[@]}")
while [ "${#ranks[@]}" -gt 0 ] && [ "$code" = 0 ]; do
  sleep 0.2 || true
  for index in "${!ranks[@]}"; do
    ! kill -0 "${ranks[$index]}" 2>/dev/null || continue
    wait "${ranks[$index]}" || { code=$?; break; }
    unset "ranks[$index]"
  done
done
if [ "$code" != 0 ]; then
  stop TERM
  for ((tenth = 0; tenth < 10 * patience; tenth++)); do alive || break; sleep 0.1 || true; done
  stop KILL
fi
exit "$code"
