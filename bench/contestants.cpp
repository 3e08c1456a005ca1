#include "bench/contestants.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera::bench {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr size_t kWarmUpSteps = 3;  // as the peers' scripts leave out of their median

// Matrices divided over four ranks (tp, with sequence parallelism tp_sp), or layers (pp).
void add_model_parallel(std::vector<Contestant>& all) {
  const std::string folder = TESSERA_SOURCE_DIR "/bench/peers/";
  const std::vector<std::string> torch{"torch", "numpy"};
  all.push_back({"tp", "", PeerScript{folder + "train_tp.py", "", {}, torch}, 4});
  all.push_back(
      {"tp_sp", "", PeerScript{folder + "train_tp.py", "--sequence-parallel", {}, torch}, 4});
  all.push_back({"pp", "", PeerScript{folder + "train_pp.py", "", {}, torch}, 4});
  all.push_back({"tessera_tp", "tp", OurRun{"replicate", "tp: 4, sequence_parallel: false"}, 4});
  all.push_back(
      {"tessera_tp_sp", "tp_sp", OurRun{"replicate", "tp: 4, sequence_parallel: true"}, 4});
  all.push_back({"tessera_pp", "pp", OurRun{"replicate", "pp: 4, pipeline_schedule: 1F1B"}, 4});
}

std::vector<Contestant> all_contestants() {
  const std::vector<std::string> torch{"torch", "numpy"};
  const std::vector<std::string> accelerate{"torch", "numpy", "accelerate"};
  std::vector<Contestant> all{
      {"ddp", "", PeerScript{"train_ddp.py", "", {}, torch}},
      {"accelerate_ddp", "ddp",
       PeerScript{"train_accelerate.py", "--cpu --want ddp", {}, accelerate}},
      {"fsdp2", "", PeerScript{"train_fsdp2.py", "", {}, torch}},
      {"accelerate_fsdp", "fsdp2",
       PeerScript{"train_accelerate.py",
                  "--cpu --fsdp-plugin --want fsdp",
                  {"ACCELERATE_USE_CPU=true", "ACCELERATE_USE_FSDP=true"},
                  accelerate}}};
  for (int stage = 1; stage <= 3; ++stage) {
    all.push_back({fmt::format("deepspeed_{}", stage), "fsdp2",
                   PeerScript{"train_deepspeed.py",
                              fmt::format("--stage {}", stage),
                              {"DS_ACCELERATOR=cpu"},
                              {"torch", "numpy", "deepspeed"}}});
  }
  for (const bool vendor : {false, true}) {
    const std::string ending = vendor ? "_vendor" : "";
    all.push_back({"tessera_ddp" + ending, "ddp", OurRun{"replicate", "", vendor}});
    all.push_back({"tessera_zero1" + ending, "fsdp2", OurRun{"shard_optimizer", "", vendor}});
    all.push_back({"tessera_zero2" + ending, "fsdp2", OurRun{"shard_gradients", "", vendor}});
    all.push_back({"tessera_fsdp" + ending, "fsdp2", OurRun{"full_shard", "", vendor}});
  }
  add_model_parallel(all);
  return all;
}

// In bf16 DDP casts products (as PyTorch's autocast does beside it); sharded units are gathered in
// bf16 (as FSDP2's MixedPrecisionPolicy has it).
std::string precision(const OurRun& run, const std::string& dtype) {
  return fmt::format("{{compute: {}, autocast: {}}}", dtype,
                     dtype != "fp32" && run.placement == "replicate");
}

std::string job_text(const OurRun& run, const Job& job, const fs::path& tokens,
                     const fs::path& run_dir) {
  const auto& shape = shapes().at(job.size);
  return fmt::format(R"(model: {{preset: {}}}
data: {{train: [{}], format: tokens, token_dtype: uint16, validation_fraction: 0, seq_len: {}, shuffle: false}}
optimizer: {{decay_norms_and_biases: true}}
schedule: {{type: constant}}
parallel: {{num_ranks: {}, threads_per_rank: {}, placement: {}{}}}
precision: {}
train: {{steps: {}, global_batch: {}, run_dir: {}, sample_tokens: 0}}
checkpoint: {{at_end: false}}
logging: {{tensorboard: false, svg: false, progress: none}}
)",
                     job.size, tokens.string(), shape.seq_len, job.num_ranks, job.threads,
                     run.placement, run.model_axes.empty() ? "" : ", " + run.model_axes,
                     precision(run, job.dtype), shape.steps, shape.global_batch, run_dir.string());
}

double median_step_seconds(const fs::path& metrics) {
  std::vector<double> seconds;
  std::istringstream lines(read_file(metrics));
  for (std::string line; std::getline(lines, line);)
    seconds.push_back(json::parse(line)["step_seconds"]);
  if (seconds.size() > kWarmUpSteps) seconds.erase(seconds.begin(), seconds.begin() + kWarmUpSteps);
  return median(std::move(seconds));
}

Result result_of_ours(const Job& job, const fs::path& run_dir) {
  const auto& shape = shapes().at(job.size);
  const auto summary = json::parse(read_file(run_dir / "summary.json"));
  double peak_bytes = 0;
  for (const auto& bytes : summary["peak_memory_bytes"])
    peak_bytes = std::max(peak_bytes, bytes.get<double>());
  return {.tokens_per_second =
              shape.seq_len * shape.global_batch / median_step_seconds(run_dir / "metrics.jsonl"),
          .peak_memory_mib = peak_bytes / 1048576,
          .first_step_seconds = summary["seconds_to_first_step"],
          .last_loss = summary["last_loss"],
          .matmul_limit = summary["matmul_peak_flops"],
          .mfu = summary["mfu"],
          .wait_share = summary["communication_wait_share"]};
}

struct CpuSeconds {
  double busy = 0, all = 0;  ///< of the machine since its start
  double own = 0;            ///< of this process's children that have ended
};

CpuSeconds cpu_seconds() {
  std::ifstream file("/proc/stat");
  std::string name;
  file >> name;
  double all = 0, value = 0, idle = 0;
  for (int i = 0; i < 8 && file >> value; ++i) {
    all += value;
    if (i == 3 || i == 4) idle += value;  // idle, and waiting for a disk
  }
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return {(all - idle) / ticks, all / ticks, seconds(usage.ru_utime) + seconds(usage.ru_stime)};
}

double foreign_share(const CpuSeconds& before, const CpuSeconds& after) {
  const double foreign = (after.busy - before.busy) - (after.own - before.own);
  return std::max(0.0, foreign) / std::max(1e-9, after.all - before.all);
}

std::string last_line(const std::string& text) {
  const auto end = text.find_last_not_of(" \n");
  if (end == std::string::npos) return "";
  const auto newline = text.rfind('\n', end);
  const auto begin = newline == std::string::npos ? 0 : newline + 1;
  return text.substr(begin, end + 1 - begin);
}

}  // namespace

const std::vector<Contestant>& contestants() {
  static const std::vector<Contestant> kAll = all_contestants();
  return kAll;
}

const Contestant& contestant_named(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& contestant : contestants()) {
    if (contestant.name == name) return contestant;
    names.push_back(contestant.name);
  }
  user_error("--contestants: expected some of {}; got {}", fmt::join(names, ", "), name);
}

int ranks_of(const Contestant& contestant, const Job& job) {
  return contestant.num_ranks != 0 ? contestant.num_ranks : job.num_ranks;
}

const std::map<std::string, Shape>& shapes() {
  static const std::map<std::string, Shape> kShapes{{"tiny", {256, 8, 30}}, {"small", {512, 4, 8}}};
  return kShapes;
}

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  if (!pipe) system_error("cannot start " + command);
  std::string text;
  std::array<char, 4096> chunk;
  while (const size_t n = std::fread(chunk.data(), 1, chunk.size(), pipe.get()))
    text.append(chunk.data(), n);
  return text;
}

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Outcome outcome_of_peer(const std::string& printed) {
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);) {
    const auto event = json::parse(line, nullptr, false);
    if (!event.is_object()) continue;  // libraries print lines of their own
    const auto kind = event.value("event", "");
    if (kind == "unsupported")
      return {.kind = Outcome::Kind::unsupported, .result = {}, .why = event.value("why", "")};
    if (kind != "summary") continue;
    Result result{.tokens_per_second = event["tokens_per_s"],
                  .first_step_seconds = event["launch_to_first_step_s"],
                  .last_loss = event["last_loss"],
                  .versions = event["versions"]};
    for (const auto& mib : event["vm_hwm_mb"])
      result.peak_memory_mib = std::max(result.peak_memory_mib, mib.get<double>());
    return {.kind = Outcome::Kind::done, .result = std::move(result), .why = ""};
  }
  return {.kind = Outcome::Kind::failed, .result = {}, .why = "no summary"};
}

Runner::Runner(RunnerOptions options) : options_(std::move(options)) {
  folder_ = fs::temp_directory_path() / fmt::format("tessera_bench_{}", ::getpid());
  fs::create_directories(folder_);
  bin_ = fs::read_symlink("/proc/self/exe").parent_path();
  tokens_ = folder_ / "tokens.bin";
  errors_ = folder_ / "stderr.txt";
  std::string texts;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/usr/share/common-licenses", none)) {
    if (!entry.is_regular_file() || entry.is_symlink()) continue;
    texts += ' ';
    texts += quoted(entry.path());
  }
  output_of(fmt::format("{} tokenize{} --out {} --dtype uint16", quoted(bin_ / "tessera"), texts,
                        quoted(tokens_)));
  if (!fs::exists(tokens_))
    user_error("tessera tokenize failed: expected texts in /usr/share/common-licenses");
}

Runner::~Runner() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

std::string Runner::why_not(const Contestant& contestant) const {
  const auto* script = std::get_if<PeerScript>(&contestant.what);
  if (script == nullptr) return "";
  for (const std::string& file : {std::string("common.py"), script->file}) {
    if (options_.peers.empty() || !fs::exists(fs::path(options_.peers) / file))
      return fmt::format("no {}; set --peers to its folder", file);
  }
  const auto missing =
      output_of(fmt::format("{} -c 'import importlib.util as u, sys; "
                            "print(*[p for p in sys.argv[1:] if u.find_spec(p) is None])' {} 2>&1",
                            quoted(options_.python), fmt::join(script->packages, " ")));
  if (missing == "\n") return "";
  return fmt::format("missing in {}: {}; set --python", options_.python, last_line(missing));
}

Outcome Runner::run(const Contestant& contestant, const Job& given) const {
  Job job = given;
  job.num_ranks = ranks_of(contestant, given);
  const auto before = cpu_seconds();
  const auto* script = std::get_if<PeerScript>(&contestant.what);
  auto outcome =
      script != nullptr ? run_peer(*script, job) : run_ours(std::get<OurRun>(contestant.what), job);
  outcome.result.foreign_cpu = foreign_share(before, cpu_seconds());
  if (outcome.kind == Outcome::Kind::failed) {
    const auto kept = fs::path(options_.errors) /
                      fmt::format("{}.{}.{}.stderr", contestant.name, job.size, job.dtype);
    fs::create_directories(kept.parent_path());
    write_file(kept, read_file(errors_));
    outcome.why += "; see " + kept.string();
  }
  return outcome;
}

Outcome Runner::run_peer(const PeerScript& script, const Job& job) const {
  // DeepSpeed compiles with ninja, which stands beside an environment's python.
  const auto python_folder = fs::path(options_.python).parent_path();
  const auto path =
      python_folder.empty() ? "" : fmt::format("PATH={}:\"$PATH\" ", quoted(python_folder));
  return outcome_of_peer(output_of(fmt::format(
      "cd {} && {}PYTHONPATH=\"$PWD:$PYTHONPATH\" BENCH_T0=$(date +%s.%N) BENCH_DATA={} "
      "OMP_NUM_THREADS={} {} {} -m torch.distributed.run --nproc_per_node={} {} {} --size {} "
      "--dtype {} --steps {} 2>{}",
      quoted(options_.peers), path, quoted(tokens_), job.threads,
      fmt::join(script.environment, " "), with_deadline(quoted(options_.python)), job.num_ranks,
      quoted(script.file), script.arguments, job.size, job.dtype, shapes().at(job.size).steps,
      quoted(errors_))));
}

fs::path Runner::write_job(const OurRun& run, const Job& job) const {
  auto job_file = folder_ / "job.yaml";
  write_file(job_file, job_text(run, job, tokens_, folder_ / "run"));
  return job_file;
}

Outcome Runner::run_ours(const OurRun& run, const Job& job) const {
  const auto job_file = write_job(run, job), run_dir = folder_ / "run";
  fs::remove_all(run_dir);
  output_of(fmt::format("{}{} train {} 2>{}", run.vendor_check ? "TESSERA_MKL_VENDOR_CHECK=1 " : "",
                        with_deadline(quoted(bin_ / "tessera")), quoted(job_file),
                        quoted(errors_)));
  if (!fs::exists(run_dir / "summary.json"))
    return {.kind = Outcome::Kind::failed, .result = {}, .why = "no summary"};
  return {.kind = Outcome::Kind::done, .result = result_of_ours(job, run_dir), .why = ""};
}

std::string Runner::with_deadline(const std::string& command) const {
  return fmt::format("timeout --kill-after=10 {} {}", options_.run_deadline_seconds, command);
}

}  // namespace tessera::bench
