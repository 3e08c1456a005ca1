// Who is missing: what the ranks of a run know of each other's waiting.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace tessera::comm {

/// Thrown by whoever waited for other ranks in vain. Ranks are those of the run.
class MissingPeers : public std::runtime_error {
 public:
  enum class Why {
    late,  ///< they had not come at the deadline
    lost   ///< they ended, gave up, or closed the connection
  };
  MissingPeers(Why why, std::vector<int> ranks, const std::string& what)
      : std::runtime_error(what), why_(why), ranks_(std::move(ranks)) {}

  Why why() const { return why_; }
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  Why why_;
  std::vector<int> ranks_;
};

/// "rank 3 did not come", "ranks 1, 3 did not come". The launcher knows these words
/// (launch/failure.cpp).
std::string did_not_come(const std::vector<int>& ranks);

/// Where in the store a rank says on which host it is.
std::string host_key(int rank);

struct RollCallOptions {
  int rank = 0;               ///< of this process, in the run
  std::optional<int> server;  ///< the rank that serves the store; none: the launcher does
  std::chrono::milliseconds timeout = std::chrono::seconds(600);  ///< of the run's operations
  bool one_machine = true;  ///< else errors say on which host a rank is
};

/// Note [Roll call]. A rank that waits may wait for one that waits itself, on another axis, and
/// Gloo does not say for whom it waits. So a rank that has waited for a second says in the run's
/// store for whom, every quarter of a second, and a rank that gives up says so, too, and for whom
/// it gave up. Whoever gives up follows these words from the ranks that it missed itself: the one
/// at the end, which waits for nobody, is the one to name. A rank that no longer repeats its words
/// does not wait any more, it is stopped. If the store is silent, the rank that serves it is the
/// one. With a deadline under four seconds, a quarter of it stands for the second.
///
/// One thread of its own, and one connection to the store; nothing is sent while no operation lasts
/// a second. For all threads of the process.
class RollCall {
 public:
  RollCall(const c10::intrusive_ptr<c10d::Store>& store, const RollCallOptions& options);
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  const RollCallOptions& options() const { return options_; }

  /// The ranks that an operation under way waits for; called by the roll call's thread.
  using ForWhom = std::function<std::vector<int>()>;

  /// Runs `body`, during which this rank may wait. Instead of MissingPeers it throws
  /// std::runtime_error with one line that names the rank at the end of the chain, "rank 3 did not
  /// come within 5 s; rank 1 waits for it", one and a half seconds later if that was the deadline.
  void watch(const ForWhom& for_whom, const std::function<void()>& body);

 private:
  struct Board;
  static void serve(const std::shared_ptr<Board>& board,
                    const c10::intrusive_ptr<c10d::Store>& shared_store);
  std::string explain(const MissingPeers& missing);

  RollCallOptions options_;
  std::shared_ptr<Board> board_;
};

}  // namespace tessera::comm
