#!/bin/sh
# The real MLflow reads the runs that logging.report_to writes: one that ended, then the same gone on with.
# Usage: mlflow.sh   (BUILD=build/release, PYTHON=python3 of the MLflow to use). Exit code 77: there is none.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/release}
python=${PYTHON:-python3}

if ! "$python" -c 'import mlflow' 2>/dev/null; then
  echo "mlflow.sh: skipped: $python has no MLflow (pip install mlflow-skinny, or set PYTHON)"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
train() {
  "$build/bin/tessera" train tests/integration/tiny_job.yaml --logging.report_to=mlflow,csv --train.run_dir="$folder/a run" \
    --schedule.type=constant "$@" >"$folder/output" 2>&1 || { cat "$folder/output"; exit 1; }
}
train --train.steps=3
train --train.steps=5 --resume auto

MLFLOW_ALLOW_FILE_STORE=true "$python" - "$folder/a run" <<'PYTHON'
import csv, json, sys
from mlflow.tracking import MlflowClient

folder = sys.argv[1]
client = MlflowClient(tracking_uri=f"file://{folder}/mlruns")
runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
assert len(runs) == 1, runs
run = runs[0]
assert (run.info.status, run.info.run_name) == ("FINISHED", "a run"), run.info
assert run.data.params["optimizer/type"] == "adamw", run.data.params
with open(f"{folder}/metrics.jsonl") as file:
    records = [json.loads(line) for line in file]
losses = [(record["step"], record["loss"]) for record in records if "loss" in record]
assert [step for step, _ in losses] == [1, 2, 3, 4, 5], losses
history = client.get_metric_history(run.info.run_id, "train/loss")
assert [(metric.step, metric.value) for metric in history] == losses, history
with open(f"{folder}/metrics.csv", newline="") as file:
    rows = list(csv.DictReader(file))
assert [(int(row["step"]), float(row["train/loss"])) for row in rows] == losses, rows
print(f"mlflow.sh: MLflow read {len(run.data.metrics)} metrics and {len(run.data.params)} parameters of a finished run")
PYTHON
