#include "tessera/launch/rank_environment.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <map>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera::launch {
namespace {

using Map = std::map<std::string, std::string>;

std::optional<RankEnvironment> of(const Map& variables) {
  return rank_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const Map& variables) {
  try {
    of(variables);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

Map with(Map variables, const Map& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

void expect_ranks(const RankEnvironment& found, int rank, int world_size, int local_rank,
                  int local_world_size, int node_rank) {
  EXPECT_EQ(found.rank, rank);
  EXPECT_EQ(found.world_size, world_size);
  EXPECT_EQ(found.local_rank, local_rank);
  EXPECT_EQ(found.local_world_size, local_world_size);
  EXPECT_EQ(found.node_rank, node_rank);
}

const Map kTorchrun{{"RANK", "5"},           {"WORLD_SIZE", "8"},
                    {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "4"},
                    {"GROUP_RANK", "1"},     {"MASTER_ADDR", "10.0.0.1"},
                    {"MASTER_PORT", "29500"}};
const Map kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                   {"OMPI_MCA_ess_base_jobid", "1234567"}};
const Map kPmi{{"PMI_RANK", "3"},        {"PMI_SIZE", "4"},     {"MPI_LOCALRANKID", "1"},
               {"MPI_LOCALNRANKS", "2"}, {"MASTER_ADDR", "n1"}, {"PMI_JOBID", "kvs_77"}};
const Map kSlurm{{"SLURM_PROCID", "4"},
                 {"SLURM_NTASKS", "5"},
                 {"SLURM_LOCALID", "0"},
                 {"SLURM_NODEID", "2"},
                 {"SLURM_JOB_ID", "99"},
                 {"SLURM_STEP_ID", "0"},
                 {"SLURM_STEP_NUM_NODES", "3"},
                 {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                 {"SLURM_STEP_NODELIST", "gpu[07-08,11]"}};

TEST(RankEnvironment, AnOrdinaryProgramHasNone) { EXPECT_FALSE(of({{"PATH", "/bin"}})); }

TEST(RankEnvironment, Torchrun) {
  const auto found = of(kTorchrun);
  ASSERT_TRUE(found);
  expect_ranks(*found, 5, 8, 1, 4, 1);
  EXPECT_EQ(found->master_addr, "10.0.0.1");
  EXPECT_EQ(found->master_port, 29500);
  EXPECT_EQ(found->source, "torchrun");
}

TEST(RankEnvironment, TorchrunsAgentMayServeTheStore) {
  EXPECT_FALSE(of(kTorchrun)->agent_store);
  EXPECT_FALSE(of(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}))->agent_store);
  EXPECT_TRUE(of(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}))->agent_store);
}

TEST(RankEnvironment, OpenMpiOnOneMachineMeetsOnLoopback) {
  const auto found = of(kOpenMpi), other = of(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}}));
  ASSERT_TRUE(found && other);
  expect_ranks(*found, 1, 2, 1, 2, 0);
  EXPECT_EQ(found->master_addr, "127.0.0.1");
  EXPECT_GE(found->master_port, 20000);
  EXPECT_LT(found->master_port, 32000);
  EXPECT_EQ(found->master_port, other->master_port);
  EXPECT_NE(found->master_port,
            of(with(kOpenMpi, {{"OMPI_MCA_ess_base_jobid", "1234568"}}))->master_port);
  EXPECT_EQ(of(with(kOpenMpi, {{"MASTER_PORT", "4000"}}))->master_port, 4000);
}

TEST(RankEnvironment, OpenMpiOnSeveralMachinesNeedsAnAddress) {
  const auto two_machines =
      with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}});
  EXPECT_THAT(error_of(two_machines), testing::HasSubstr("MASTER_ADDR"));
  const auto found = of(with(two_machines, {{"MASTER_ADDR", "n1"}}));
  expect_ranks(*found, 3, 4, 1, 2, 1);
  EXPECT_EQ(of(with(two_machines, {{"SLURM_JOB_NODELIST", "a[3-4]"}}))->master_addr, "a3");
}

TEST(RankEnvironment, Pmi) {
  const auto found = of(kPmi);
  ASSERT_TRUE(found);
  expect_ranks(*found, 3, 4, 1, 2, 1);
  EXPECT_EQ(found->master_addr, "n1");
  auto no_local = kPmi;
  no_local.erase("MPI_LOCALRANKID");
  EXPECT_THAT(error_of(no_local), testing::HasSubstr("MPI_LOCALRANKID"));
}

TEST(RankEnvironment, SlurmStep) {
  const auto found = of(kSlurm);
  ASSERT_TRUE(found);
  expect_ranks(*found, 4, 5, 0, 1, 2);
  EXPECT_EQ(found->master_addr, "gpu07");
  EXPECT_EQ(found->source, "Slurm");
  EXPECT_NE(found->master_port, of(with(kSlurm, {{"SLURM_STEP_ID", "1"}}))->master_port);
}

TEST(RankEnvironment, ABatchShellOrAStepOfOneTaskIsNotARank) {
  auto batch = kSlurm;
  batch.erase("SLURM_STEP_ID");
  EXPECT_FALSE(of(batch));
  EXPECT_FALSE(of(with(kSlurm, {{"SLURM_STEP_ID", "4294967291"}})));
  EXPECT_FALSE(of(with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}})));
}

TEST(RankEnvironment, WhoStartedUsLastGoesFirst) {
  EXPECT_EQ(of(with(with(kSlurm, kOpenMpi), kTorchrun))->source, "torchrun");
  EXPECT_EQ(of(with(kSlurm, kOpenMpi))->source, "Open MPI");
  EXPECT_EQ(of(with(kSlurm, kPmi))->source, "PMI");
}

TEST(RankEnvironment, BadValuesNameTheVariable) {
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "five"}})),
              testing::HasSubstr("RANK: expected a whole number"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "-1"}})), testing::HasSubstr("'-1'"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "8"}})),
              testing::HasSubstr("rank 8 does not exist among 8"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_RANK", "4"}})), testing::HasSubstr("local rank 4"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})),
              testing::HasSubstr("9 ranks"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"MASTER_PORT", "65536"}})),
              testing::HasSubstr("MASTER_PORT"));
  EXPECT_THAT(error_of({{"RANK", "0"}}),
              testing::HasSubstr("WORLD_SIZE is not set though RANK is"));
  EXPECT_THAT(error_of({{"WORLD_SIZE", "2"}}),
              testing::HasSubstr("RANK is not set though WORLD_SIZE is"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
              testing::HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2"}})),
              testing::HasSubstr("SLURM_STEP_TASKS_PER_NODE"));
}

TEST(RankEnvironment, AListenSocketThatIsNoneIsIgnored) {
  // A child of rank 0 inherits the variable, but not the socket.
  EXPECT_FALSE(of(with(kTorchrun, {{"RANK", "0"}, {"TESSERA_LISTEN_FD", "0"}}))->listen_fd);
}

TEST(RankEnvironment, TheRunsSecretIsAVariableOrAFile) {
  EXPECT_EQ(of(kTorchrun)->secret, "");
  EXPECT_EQ(of(with(kTorchrun, {{kRunSecretVariable, "0123456789abcdef"}}))->secret,
            "0123456789abcdef");
  const auto file = testing::TempDir() + "run_secret";
  write_file(file, "fedcba9876543210\n");
  EXPECT_EQ(of(with(kTorchrun, {{kRunSecretFileVariable, file}}))->secret, "fedcba9876543210");
  write_file(file, "short\n");
  EXPECT_THAT(error_of(with(kTorchrun, {{kRunSecretFileVariable, file}})),
              testing::HasSubstr(file + ": expected a secret of at least 16 characters, got 5"));
  std::filesystem::remove(file);
  EXPECT_THAT(error_of(with(kTorchrun, {{kRunSecretFileVariable, file}})),
              testing::HasSubstr("cannot be opened: No such file"));
}

TEST(SlurmLists, FirstHost) {
  EXPECT_EQ(first_host("localhost"), "localhost");
  EXPECT_EQ(first_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_host("node[003-017,20],x"), "node003");
  EXPECT_EQ(first_host("n[5,7]"), "n5");
  EXPECT_EQ(first_host("n[5]-ib,m"), "n5-ib");
  EXPECT_THROW(first_host("n[5"), UserError);
}

TEST(SlurmLists, TasksOfNode) {
  EXPECT_EQ(tasks_of_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_of_node("2(x3),1", 3), 1);
  EXPECT_EQ(tasks_of_node("2(x3),1", 4), std::nullopt);
  EXPECT_EQ(tasks_of_node("4", 0), 4);
  EXPECT_EQ(tasks_of_node("", 0), std::nullopt);
  EXPECT_EQ(tasks_of_node("x", 0), std::nullopt);
}

}  // namespace
}  // namespace tessera::launch
