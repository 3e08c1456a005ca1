// What the stages of a pipeline hand to each other.
#pragma once

#include <torch/types.h>

#include <compare>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/schedule/table.h"

namespace tessera::parallel {

/// The output of the stage before, or the gradient from the stage behind, for `stage`.
struct Message {
  enum class Kind { output, gradient };
  Kind kind = Kind::output;
  int stage = 0, micro_batch = 0;
  auto operator<=>(const Message&) const = default;
};

/// Carries the messages of a table of actions. A channel leads from a rank to one it sends to: a
/// group of the two of its own, in which messages follow each other in the order of the sender's
/// actions. So a receive is posted before its message is needed (on a GPU not long before) and a send waits for nobody;
/// messages that come earlier than they are needed are kept. Between stages of one rank a tensor is
/// handed over as it is.
class Messages {
 public:
  using Actions = std::vector<schedule::Action>;  ///< of one rank, see schedule/table.h

  /// Makes the channels that the actions of `ranks`, or some of them, need. Collective over pp.
  Messages(const mesh::DeviceMesh& mesh, const std::vector<Actions>& ranks,
           std::vector<int> rank_of_stage);

  /// What this rank receives, by sender, in its order.
  using Plan = std::map<int, std::vector<Message>>;
  Plan plan(const std::vector<Actions>& ranks) const;

  /// Before the first action of those that `plan`, which outlives the run, is made of. `remember`:
  /// shapes are told in the first run and hold from then on (ValueError for another one), so that
  /// receives can be posted ahead; otherwise each message says its own.
  void begin(const Plan& plan, bool remember);

  /// `tensor` must not be changed any more.
  void send(const Message& message, const torch::Tensor& tensor);

  /// Waits for `message`. c10::DistError if the sender is lost.
  torch::Tensor take(const Message& message);

  void finish();  ///< waits until all that was sent has been received
  void abort();   ///< this rank leaves: whoever waits for it fails

 private:
  struct Shape {
    std::vector<int64_t> sizes;
    torch::Dtype dtype = torch::kFloat32;
    bool operator==(const Shape&) const = default;
  };
  struct Posted {
    torch::Tensor tensor;
    comm::Work work;
  };
  struct Channel {
    mesh::Axis group;
    int sender = 0;              ///< its rank in the group
    std::deque<Message> coming;  ///< in this run, in the sender's order
    std::deque<Posted> ahead;    ///< receives of the first of these
  };

  template <typename Visit>
  void for_each_sent(const std::vector<Actions>& ranks, int sender, const Visit& visit) const;
  void post(Channel& channel, size_t count);
  torch::Tensor receive(Channel& channel);
  int rank_of(int stage) const { return rank_of_stage_[static_cast<size_t>(stage)]; }

  std::vector<int> rank_of_stage_;
  int rank_ = 0;
  torch::Device device_;
  std::map<int, Channel> from_, to_;  // by the other rank
  std::map<Message, torch::Tensor> arrived_;
  std::map<Message, Shape> shapes_;
  std::deque<comm::Work> sends_;
  bool remember_ = false;
};

}  // namespace tessera::parallel
