#!/bin/sh
# Gives the event files that Tessera writes to the real TensorBoard: its data reader and its hyper-parameter plugin.
# Usage: tensorboard.sh   (BUILD=build/release, PYTHON=python3 of the TensorBoard to use). Exit code 77: there is none.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/release}
python=${PYTHON:-python3}

if ! "$python" -c 'import tensorboard' 2>/dev/null; then
  echo "tensorboard.sh: skipped: $python has no TensorBoard (pip install tensorboard, or set PYTHON)"
  exit 77
fi
events=$(mktemp -d)
trap 'rm -rf "$events"' EXIT
TESSERA_EVENTS_DIR=$events/run "$build/bin/tessera_report_test" --gtest_brief=1 \
  --gtest_filter=EventWriterTest.WritesARun

"$python" - "$events" <<'PYTHON'
import math, os, sys
from tensorboard.backend.event_processing import data_provider, event_accumulator, plugin_event_multiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups

logs = sys.argv[1]

events = event_accumulator.EventAccumulator(os.path.join(logs, "run"), size_guidance={"tensors": 0})
events.Reload()
assert events.file_version == 2.0, events.file_version

multiplexer = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"scalars": 0})
multiplexer.AddRunsFromDirectory(logs)
multiplexer.Reload()
provider = data_provider.MultiplexerDataProvider(multiplexer, logs)
context = RequestContext()
runs = provider.read_scalars(context, experiment_id="", plugin_name="scalars", downsample=1000)
scalars = runs["run"]
expected = {"train/" + name for name in ("loss", "grad_norm", "learning_rate", "tokens_seen")}
expected |= {"speed/" + name for name in ("step_seconds", "tokens_per_second", "mfu", "communication_wait_seconds")}
expected |= {"memory/bytes", "validation/loss"}
assert set(scalars) == expected, sorted(scalars)
loss = scalars["train/loss"]
assert [point.step for point in loss] == list(range(1, 101))
assert all(abs(point.value - 8 / point.step) < 1e-6 for point in loss)
assert math.isnan(scalars["train/grad_norm"][49].value)
assert scalars["train/tokens_seen"][-1].value == 204800
assert [(point.step, point.value) for point in scalars["validation/loss"]] == [(100, 0.25)]

backend = backend_context.Context(base_plugin.TBContext(data_provider=provider))
request = api_pb2.GetExperimentRequest(include_metrics=True)
experiment = get_experiment.Handler(context, backend, "", request).run()
names = {info.name: info.type for info in experiment.hparam_infos}
assert names == {"optimizer.learning_rate": api_pb2.DATA_TYPE_FLOAT64, "optimizer.type": api_pb2.DATA_TYPE_STRING,
                 "optimizer.decay_norms_and_biases": api_pb2.DATA_TYPE_BOOL, "data.shuffle": api_pb2.DATA_TYPE_BOOL}, names
assert {info.name.tag for info in experiment.metric_infos} == {"train/loss", "validation/loss"}
request = api_pb2.ListSessionGroupsRequest(
    start_index=0, slice_size=10, include_metrics=True,
    allowed_statuses=[api_pb2.STATUS_SUCCESS],
    col_params=[api_pb2.ColParams(metric=info.name, include_in_result=True) for info in experiment.metric_infos]
    + [api_pb2.ColParams(hparam=name, include_in_result=True) for name in names])
groups = list_session_groups.Handler(context, backend, "", request).run().session_groups
assert len(groups) == 1, groups
values = groups[0].hparams
assert values["optimizer.learning_rate"].number_value == 3e-4
assert values["optimizer.type"].string_value == "adamw"
assert values["data.shuffle"].bool_value is True
assert values["optimizer.decay_norms_and_biases"].WhichOneof("kind") == "bool_value"
results = {value.name.tag: value.value for value in groups[0].metric_values}
assert results["validation/loss"] == 0.25 and abs(results["train/loss"] - 0.08) < 1e-6, results
print(f"tensorboard.sh: TensorBoard read {len(scalars)} scalar series and {len(values)} hyper-parameters of a finished run")
PYTHON
