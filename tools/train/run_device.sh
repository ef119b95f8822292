#!/usr/bin/env bash
# Runs a training on a machine with GPUs in steps that may be separate commands.
#   run_device.sh start  [train.py arguments]   pool, device check and training in the background
#   run_device.sh continue [train.py arguments] pool with free chat and a training that goes on from models/tiny,
#                                               with everything on, on one GPU; a second process compiles the
#                                               draft's pieces meanwhile
#   run_device.sh watch SECONDS                 waits (not longer than the run, or until the log shows an error
#                                               or a NaN), then prints the end of the log
#   run_device.sh snapshot DIR                  log and newest bf16 snapshot to DIR
#   run_device.sh export DIR                    checkpoint and log to DIR
# WORK (default /tmp/train) holds everything that the run writes.
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=${WORK:-/tmp/train}
model=$here/../../models/tiny
items=${ITEMS:-$here/../../.carry/items.safetensors}
python=${PYTHON:-python3}
log=$work/train.log
lengths=${LENGTHS:-2048,8192,16384}
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=$work/inductor TRITON_CACHE_DIR=$work/triton TOKENIZERS_PARALLELISM=false

latest() { echo "$work/state/$(cat "$work/state/snapshot.latest")"; }

case "$1" in
start)
    shift
    mkdir -p "$work/state"
    gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
    cpus=$(nproc)
    echo "$gpus GPUs, $cpus CPUs"; nvidia-smi --query-gpu=name,memory.total --format=csv,noheader
    df -h "$work" | tail -1
    if [ ! -e "$work/pool/layout.json" ]; then
        (cd "$here" && setsid nohup env OMP_NUM_THREADS=1 "$python" feed.py --dir "$work/pool" \
            --tokenizer "$model/tokenizer.json" --workers $((cpus / 4 + 1)) >"$work/pool.log" 2>&1 </dev/null &)
    fi
    (cd "$here" && setsid nohup "$python" check_device.py >"$work/check.log" 2>&1 </dev/null &)
    for _ in $(seq 60); do [ -e "$work/pool/layout.json" ] && break; sleep 0.5; done
    sleep 6
    (cd "$here" && setsid nohup "$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus" train.py \
        --config "$model" --pool "$work/pool" --out "$work/state" --eval "$items" "$@" >>"$log" 2>&1 </dev/null &)
    ;;
continue)
    shift
    mkdir -p "$work/state"
    nvidia-smi --query-gpu=name,memory.total --format=csv,noheader
    (cd "$here" && setsid nohup env OMP_NUM_THREADS=1 "$python" feed.py --dir "$work/pool" --tokenizer "$model/tokenizer.json" \
        --workers "${WORKERS:-6}" --talk "${TALK:-0.6}" --first-seconds 1 --lengths "$lengths" --megatokens "${MEGATOKENS:-120,50,40}" --seed 20270201 \
        >"$work/pool.log" 2>&1 </dev/null &)
    for _ in $(seq 120); do [ -e "$work/pool/layout.json" ] && break; sleep 0.5; done
    sleep "${POOL_SECONDS:-8}"
    common=(--config "$model" --pool "$work/pool" --lengths "$lengths" --init "$model" --continued --act-quant --seed 20270201
        --tokens-per-step 32768 --rate 0.3 --draft-rate 0.4)
    (cd "$here" && setsid nohup "$python" train.py "${common[@]}" --out "$work/state" --backbone-seconds 380 \
        --draft-seconds 150 --log-steps 100 "$@" >>"$log" 2>&1 </dev/null &)
    (cd "$here" && setsid nohup bash -c "until grep -q 'windows of ${lengths%%,*}: first step' '$log' || [ -e '$work/state/done' ]; do sleep 1; done
        exec \"\$@\"" warm "$python" train.py "${common[@]}" --out "$work/warm" --backbone-seconds 0 \
        --draft-seconds 1000 "$@" --max-steps 1 >>"$work/check.log" 2>&1 </dev/null &)
    ;;
watch)
    end=$(($(date +%s) + $2))
    while [ "$(date +%s)" -lt "$end" ] && [ ! -e "$work/state/done" ]; do
        sleep 3
        if grep -qE 'Traceback|NON-FINITE [0-9]{2}|Error:' "$log" 2>/dev/null; then echo "BROKEN"; sleep 5; break; fi
    done
    tail -n 8 "$work/check.log" 2>/dev/null
    tail -3 "$work/pool.log"
    nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader
    tail -c 5000 "$log"
    [ -e "$work/state/done" ] && echo "FINISHED"
    ;;
snapshot)
    mkdir -p "$2"
    cp "$(latest)"/* "$2"/
    tail -c 400000 "$log" >"$2/train.log"
    ;;
export)
    mkdir -p "$2"
    touch "$work/pool/stop"
    (cd "$here" && CUDA_VISIBLE_DEVICES='' "$python" export.py --config "$model" --from "$work/state/state.pt" --out "$work/export")
    cp "$work"/export/model* "$2"/
    tail -c 400000 "$log" >"$2/train.log"
    cp "$work/check.log" "$2/check.log"
    ;;
esac
