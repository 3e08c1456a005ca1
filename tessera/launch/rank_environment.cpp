#include "tessera/launch/rank_environment.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/launch/socket.h"

namespace tessera::launch {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

/// Typed access to the variables; an empty one counts as unset.
class Variables {
 public:
  explicit Variables(const GetVariable& get) : get_(get) {}

  std::optional<std::string> text(const char* name) const {
    const char* value = get_(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  }
  bool has(const char* name) const { return text(name).has_value(); }

  std::optional<int> number(const char* name, int low = 0,
                            int high = std::numeric_limits<int>::max()) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int result = 0;
    const char* end = value->data() + value->size();
    const auto parsed = std::from_chars(value->data(), end, result);
    if (parsed.ec != std::errc() || parsed.ptr != end || result < low || result > high) {
      if (high == std::numeric_limits<int>::max()) {
        user_error("{}: expected a whole number from {} up, got '{}'", name, low, *value);
      }
      user_error("{}: expected a whole number from {} to {}, got '{}'", name, low, high, *value);
    }
    return result;
  }

  /// A number that must be there once `because` is.
  int required(const char* name, const char* because, int low = 0) const {
    const auto value = number(name, low);
    if (!value) user_error("{} is not set though {} is; set both or neither", name, because);
    return *value;
  }

 private:
  const GetVariable& get_;
};

/// FNV-1a: the same on every rank and machine, which std::hash does not promise.
uint64_t hash(std::string_view text) {
  uint64_t value = 14695981039346656037ULL;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return value;
}

/// Linux hands out ports from 32768 up by itself, and programs of their own mostly live below
/// 20000.
int port_from(const std::string& job) { return 20000 + static_cast<int>(hash(job) % 12000); }

std::optional<std::string> first_slurm_host(const Variables& variables) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (const auto list = variables.text(name)) return first_host(*list);
  }
  return std::nullopt;
}

/// MASTER_ADDR and MASTER_PORT, or the ones derived from `job`, an id that all ranks share ("" when
/// there is none).
void find_master(const Variables& variables, const std::string& job, bool one_machine,
                 RankEnvironment& found) {
  if (const auto address = variables.text("MASTER_ADDR")) {
    found.master_addr = *address;
  } else if (one_machine) {
    found.master_addr = kLoopback;
  } else if (const auto host = first_slurm_host(variables)) {
    found.master_addr = *host;
  } else {
    user_error(
        "MASTER_ADDR is not set and the ranks of {} are on several machines; set it to the host of "
        "rank 0",
        found.source);
  }
  if (const auto port = variables.number("MASTER_PORT", 1, 65535)) {
    found.master_port = *port;
  } else if (!job.empty()) {
    found.master_port = port_from(job);
  } else if (found.world_size > 1) {
    user_error(
        "MASTER_PORT is not set and {} gives no job id to derive it from; set it to a free port of "
        "rank 0",
        found.source);
  }
}

RankEnvironment from_torchrun(const Variables& variables) {
  RankEnvironment found{.source = "torchrun"};
  found.rank = variables.required("RANK", "WORLD_SIZE");
  found.world_size = variables.required("WORLD_SIZE", "RANK", 1);
  found.local_world_size = variables.number("LOCAL_WORLD_SIZE", 1).value_or(found.world_size);
  const bool one_machine = found.local_world_size == found.world_size;
  found.local_rank = variables.number("LOCAL_RANK").value_or(found.rank % found.local_world_size);
  found.node_rank = variables.number("GROUP_RANK").value_or(found.rank / found.local_world_size);
  find_master(variables, "", one_machine, found);
  found.agent_store = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const auto fd = variables.number("TESSERA_LISTEN_FD");
  // A child of rank 0 inherits the variable, but not the socket.
  if (fd && found.rank == 0 && is_listening(*fd)) found.listen_fd = fd;
  return found;
}

RankEnvironment from_open_mpi(const Variables& variables) {
  RankEnvironment found{.source = "Open MPI"};
  const char* because = "OMPI_COMM_WORLD_RANK";
  found.rank = variables.required("OMPI_COMM_WORLD_RANK", because);
  found.world_size = variables.required("OMPI_COMM_WORLD_SIZE", because, 1);
  found.local_rank = variables.required("OMPI_COMM_WORLD_LOCAL_RANK", because);
  found.local_world_size = variables.required("OMPI_COMM_WORLD_LOCAL_SIZE", because, 1);
  found.node_rank = (found.rank - found.local_rank) / found.local_world_size;
  std::string job;
  for (const char* name :
       {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"}) {  // Open MPI 4; 5 has only the latter
    if (job.empty()) job = variables.text(name).value_or("");
  }
  find_master(variables, job, found.local_world_size == found.world_size, found);
  return found;
}

RankEnvironment from_pmi(const Variables& variables) {
  RankEnvironment found{.source = "PMI"};
  found.rank = variables.required("PMI_RANK", "PMI_SIZE");
  found.world_size = variables.required("PMI_SIZE", "PMI_RANK", 1);
  const bool hydra =
      variables.has("MPI_LOCALRANKID");  // MPICH's and Intel's mpirun; srun has its own words
  const char* local_rank = hydra ? "MPI_LOCALRANKID" : "SLURM_LOCALID";
  if (!variables.has(local_rank)) {
    user_error(
        "MPI_LOCALRANKID is not set though PMI_RANK is; set it to the rank's number on its "
        "machine");
  }
  found.local_rank = *variables.number(local_rank);
  auto local_size = variables.number("MPI_LOCALNRANKS", 1);
  if (!local_size) {
    local_size = tasks_of_node(variables.text("SLURM_STEP_TASKS_PER_NODE").value_or(""),
                               variables.number("SLURM_NODEID").value_or(0));
  }
  found.local_world_size = local_size.value_or(found.world_size);
  found.node_rank = variables.number("SLURM_NODEID")
                        .value_or((found.rank - found.local_rank) / found.local_world_size);
  std::string job = variables.text("PMI_JOBID").value_or(variables.text("PMI_KVS").value_or(""));
  if (job.empty()) job = variables.text("SLURM_JOB_ID").value_or("");
  find_master(variables, job, found.local_world_size == found.world_size, found);
  return found;
}

/// A step is what srun starts. The shell of sbatch or salloc has a job but no step of its own.
bool in_slurm_step(const Variables& variables) {
  if (!variables.has("SLURM_PROCID") || !variables.has("SLURM_STEP_ID")) return false;
  // Slurm numbers its own steps (batch script, container, interactive shell) from the top of 32
  // bits.
  constexpr uint32_t kFirstSpecialStep = 0xfffffff0U;
  const std::string step = *variables.text("SLURM_STEP_ID");
  uint32_t number = 0;
  const auto parsed = std::from_chars(step.data(), step.data() + step.size(), number);
  if (parsed.ec != std::errc())
    user_error("SLURM_STEP_ID: expected a whole number, got '{}'", step);
  return number < kFirstSpecialStep;
}

std::optional<RankEnvironment> from_slurm(const Variables& variables) {
  RankEnvironment found{.source = "Slurm"};
  const char* because = "SLURM_PROCID";
  found.rank = variables.required("SLURM_PROCID", because);
  const bool has_step_size = variables.has("SLURM_STEP_NUM_TASKS");
  found.world_size =
      variables.required(has_step_size ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", because, 1);
  if (found.world_size == 1) return std::nullopt;
  found.local_rank = variables.required("SLURM_LOCALID", because);
  found.node_rank = variables.required("SLURM_NODEID", because);
  auto num_nodes = variables.number("SLURM_STEP_NUM_NODES", 1);
  if (!num_nodes) num_nodes = variables.number("SLURM_NNODES", 1);
  auto tasks_per_node = variables.text("SLURM_STEP_TASKS_PER_NODE");
  if (!tasks_per_node) tasks_per_node = variables.text("SLURM_TASKS_PER_NODE");
  const auto local_size = tasks_of_node(tasks_per_node.value_or(""), found.node_rank);
  if (!local_size && num_nodes.value_or(0) != 1) {
    user_error(
        "SLURM_STEP_TASKS_PER_NODE: expected the tasks of node {}, as in '2(x3),1', got '{}'",
        found.node_rank, tasks_per_node.value_or(""));
  }
  found.local_world_size = local_size.value_or(found.world_size);
  const std::string job =
      variables.text("SLURM_JOB_ID").value_or("") + "." + *variables.text("SLURM_STEP_ID");
  find_master(variables, job, found.local_world_size == found.world_size, found);
  return found;
}

void check(const RankEnvironment& found) {
  if (found.rank >= found.world_size) {
    user_error(
        "{}: rank {} does not exist among {} ranks; see the variables for rank and world size",
        found.source, found.rank, found.world_size);
  }
  if (found.local_world_size > found.world_size) {
    user_error(
        "{}: {} ranks on this machine are more than the {} of the whole job; see the local world "
        "size",
        found.source, found.local_world_size, found.world_size);
  }
  if (found.local_rank >= found.local_world_size) {
    user_error(
        "{}: local rank {} does not exist among {} ranks of this machine; see the local rank and "
        "world size",
        found.source, found.local_rank, found.local_world_size);
  }
}

/// UserError if it is too short to be one.
std::string run_secret(const Variables& variables) {
  auto secret = variables.text(kRunSecretVariable).value_or("");
  std::string where = kRunSecretVariable;
  if (const auto file = variables.text(kRunSecretFileVariable); file && secret.empty()) {
    where = *file;
    secret = read_file(*file);
    secret.erase(std::min(secret.find_last_not_of(" \t\r\n") + 1, secret.size()));
  } else if (secret.empty()) {
    return "";
  }
  constexpr size_t kShortest = 16;
  if (secret.size() < kShortest) {
    user_error(
        "{}: expected a secret of at least {} characters, got {}; openssl rand -hex 32 makes "
        "one",
        where, kShortest, secret.size());
  }
  return secret;
}

std::optional<RankEnvironment> find(const Variables& variables) {
  if (variables.has("RANK") || variables.has("WORLD_SIZE")) return from_torchrun(variables);
  // Before Slurm: under it, mpirun's ranks also see the variables of the step that started them.
  if (variables.has("OMPI_COMM_WORLD_RANK")) return from_open_mpi(variables);
  if (variables.has("PMI_RANK") || variables.has("PMI_SIZE")) return from_pmi(variables);
  if (in_slurm_step(variables)) return from_slurm(variables);
  return std::nullopt;
}

}  // namespace

std::optional<RankEnvironment> rank_environment(const GetVariable& get_variable) {
  auto found = find(Variables(get_variable));
  if (found) {
    check(*found);
    found->secret = run_secret(Variables(get_variable));
  }
  return found;
}

std::optional<RankEnvironment> rank_environment() {
  return rank_environment([](const char* name) { return std::getenv(name); });
}

std::string first_host(const std::string& node_list) {
  const auto bracket = node_list.find('[');
  const auto comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return node_list.substr(0, comma);
  const auto number_end = node_list.find_first_of("-,]", bracket);
  const auto close = node_list.find(']', bracket);
  if (close == std::string::npos) user_error("SLURM_STEP_NODELIST: no ']' in '{}'", node_list);
  const auto end = node_list.find(',', close);  // a name may go on behind the brackets
  const auto suffix = node_list.substr(close + 1, end == std::string::npos ? end : end - close - 1);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, number_end - bracket - 1) +
         suffix;
}

std::optional<int> tasks_of_node(const std::string& tasks_per_node, int node) {
  std::istringstream entries(tasks_per_node);
  for (std::string entry; std::getline(entries, entry, ',');) {
    int tasks = 0, repeats = 1;
    const char* end = entry.data() + entry.size();
    auto parsed = std::from_chars(entry.data(), end, tasks);
    if (parsed.ec != std::errc() || tasks < 1) return std::nullopt;
    if (std::string_view(parsed.ptr, static_cast<size_t>(end - parsed.ptr)).starts_with("(x")) {
      parsed = std::from_chars(parsed.ptr + 2, end, repeats);
      if (parsed.ec != std::errc() || repeats < 1) return std::nullopt;
    }
    if (node < repeats) return tasks;
    node -= repeats;
  }
  return std::nullopt;
}

}  // namespace tessera::launch
