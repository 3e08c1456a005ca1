#include "tessera/report/mlflow.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string_view>
#include <variant>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/report/output.h"

namespace tessera::report {
namespace fs = std::filesystem;
namespace {

int64_t milliseconds_now() {
  using std::chrono::duration_cast, std::chrono::milliseconds, std::chrono::system_clock;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

/// 32 hexadecimal digits, as MLflow names runs.
std::string new_run_id() {
  std::random_device random;
  std::string id;
  for (int part = 0; part < 4; ++part) id += fmt::format("{:08x}", random());
  return id;
}

/// `text` as YAML reads it back.
std::string yaml_text(const std::string& text) { return in_quotes(text, '\''); }

/// A name as MLflow takes it, which is also a path below the folder of its kind.
fs::path file_named(const std::string& name) {
  std::string taken;
  for (const char c : name) {
    const bool fits = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                      std::string_view("_-. :/").find(c) != std::string_view::npos;
    taken += fits ? c : '_';
  }
  fs::path path = taken;
  const bool is_below = !taken.empty() && path.is_relative() && path.has_filename() &&
                        path.lexically_normal() == path && *path.begin() != "..";
  if (is_below) return path;
  std::ranges::replace(taken, '/', '_');
  std::ranges::replace(taken, '.', '_');
  return "_" + taken;
}

std::string uri_of(const fs::path& folder) { return "file://" + fs::absolute(folder).string(); }

/// The run that stands in an experiment's folder; "" if none does.
fs::path run_in(const fs::path& experiment) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(experiment, error)) {
    if (fs::exists(entry.path() / "meta.yaml")) return entry.path();
  }
  return {};
}

}  // namespace

MlflowRun::MlflowRun(const SinkOptions& options)
    : name_(fs::absolute(options.run_dir).lexically_normal().filename().string()),
      start_time_(milliseconds_now()) {
  const auto experiment = options.run_dir / "mlruns" / "0";
  make_folder(experiment);
  if (options.steps_done > 0) folder_ = run_in(experiment);
  const bool goes_on = !folder_.empty();
  if (!goes_on) folder_ = experiment / new_run_id();
  for (const auto* part : {"metrics", "params", "tags", "artifacts"}) make_folder(folder_ / part);
  if (goes_on) keep_steps(options.steps_done);
  if (!fs::exists(experiment / "meta.yaml")) {
    write_file(experiment / "meta.yaml",
               fmt::format("artifact_location: {}\ncreation_time: {}\nexperiment_id: '0'\n"
                           "last_update_time: {}\nlifecycle_stage: active\nname: Default\n",
                           yaml_text(uri_of(experiment)), start_time_, start_time_));
  }
  write_file(folder_ / "tags" / "mlflow.runName", name_);
  write_meta(1, 0);
}

void MlflowRun::keep_steps(int64_t last_step) const {
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "metrics")) {
    if (!entry.is_regular_file()) continue;
    const auto text = read_file(entry.path());
    std::string kept;
    for_each_line(text, [&](std::string_view line) {
      const auto step = line.substr(line.rfind(' ') + 1);  // after time and value
      if (std::stoll(std::string(step)) <= last_step) kept += line;
    });
    if (kept != text) write_file(entry.path(), kept);
  }
}

fs::path MlflowRun::place(const char* kind, const std::string& name) const {
  auto path = folder_ / kind / file_named(name);
  make_folder(path.parent_path());
  return path;
}

void MlflowRun::hyper_parameters(const HyperParameters& values) {
  for (const auto& [name, value] : values) {
    write_file(place("params", name),
               std::visit([](const auto& v) { return fmt::format("{}", v); }, value));
  }
}

void MlflowRun::scalars(int64_t step, std::span<const Scalar> scalars) {
  const auto time = milliseconds_now();
  for (const auto& [tag, value] : scalars) {
    append_to_file(place("metrics", tag), fmt::format("{} {} {}\n", time, value, step));
  }
}

void MlflowRun::finish(bool success) { write_meta(success ? 3 : 4, milliseconds_now()); }

void MlflowRun::write_meta(int status, int64_t end_time) {
  const auto id = folder_.filename().string();
  const char* user = std::getenv("USER");
  write_file(
      folder_ / "meta.yaml",
      fmt::format("artifact_uri: {}\nend_time: {}\nentry_point_name: ''\nexperiment_id: '0'\n"
                  "lifecycle_stage: active\nrun_id: '{}'\nrun_name: {}\nrun_uuid: '{}'\n"
                  "source_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: {}\n"
                  "status: {}\ntags: []\nuser_id: {}\n",
                  yaml_text(uri_of(folder_ / "artifacts")),
                  end_time == 0 ? "null" : std::to_string(end_time), id, yaml_text(name_), id,
                  start_time_, status, yaml_text(user == nullptr ? "" : user)));
}

}  // namespace tessera::report
