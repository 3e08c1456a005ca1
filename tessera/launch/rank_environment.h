// Which rank are we? What `tessera launch`, torchrun, Open MPI, MPICH and Slurm tell the processes
// they start.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace tessera::launch {

struct RankEnvironment {
  int rank = 0, local_rank = 0;              ///< in the whole job, and on this machine
  int world_size = 1, local_world_size = 1;  ///< ranks in the whole job, and on this machine
  int node_rank = 0;
  std::string master_addr;  ///< where rank 0 listens
  int master_port = 0;
  std::optional<int> listen_fd;  ///< rank 0 only: a socket that listens there already
                                 ///< (LaunchOptions::pass_listen_socket)
  std::string secret;  ///< of the run: TESSERA_RUN_SECRET, or what TESSERA_RUN_SECRET_FILE names
  bool agent_store = false;  ///< torchrun's agent serves a store there: no rank listens
  std::string source;        ///< "torchrun", "Open MPI", "PMI" or "Slurm"
};

/// Variables that hold, or name a file that holds, the secret of a run (comm/secret.h).
inline constexpr const char* kRunSecretVariable = "TESSERA_RUN_SECRET";
inline constexpr const char* kRunSecretFileVariable = "TESSERA_RUN_SECRET_FILE";

using GetVariable =
    std::function<const char*(const char* name)>;  ///< as std::getenv: nullptr when unset

/// The first of these that is there; nothing if we were started as an ordinary program:
/// 1. RANK and WORLD_SIZE (tessera launch, torchrun), with LOCAL_RANK, LOCAL_WORLD_SIZE,
///    GROUP_RANK.
/// 2. Open MPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE.
/// 3. PMI (MPICH, Intel MPI, srun --mpi=pmi2): PMI_RANK, PMI_SIZE, MPI_LOCALRANKID,
///    MPI_LOCALNRANKS.
/// 4. Slurm: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NODEID of a step of several tasks. A
///    batch script's own shell, and a step of one task, count as an ordinary program: it may start
///    ranks of its own.
///
/// MASTER_ADDR and MASTER_PORT, when set, hold for all of them. Else: 127.0.0.1 if all ranks are on
/// this machine, or the first host of the Slurm step; and a port between 20000 and 31999 (below
/// those that the kernel hands out) computed from the job's id, the same for every rank. Where
/// neither is known, that is an error which says what to set. MPI does not number machines:
/// node_rank there assumes ranks placed machine by machine. Throws UserError naming the variable
/// that is malformed, missing or contradicts another.
std::optional<RankEnvironment> rank_environment(const GetVariable& get_variable);
std::optional<RankEnvironment> rank_environment();  ///< of this process

/// The first host of a Slurm node list: "node[03-07,9],gpu1" -> "node03".
std::string first_host(const std::string& node_list);

/// Entry `node` of Slurm's "2(x3),1" (2, 2, 2, 1); none if there is no such entry or the text is
/// not of that form.
std::optional<int> tasks_of_node(const std::string& tasks_per_node, int node);

}  // namespace tessera::launch
