// Random trials, and which pairs of values they have covered.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "tessera/models/shape.h"
#include "tests/combinations/values.h"

namespace tessera::combinations {

/// One way to train, to be compared with one plain rank.
struct Trial {
  models::ModelShape shape;
  Settings function, layout;
  /// Another layout that goes on in the middle, from a checkpoint of the first.
  std::optional<Settings> resumed;
  int64_t resumed_step = 0;
  /// A configuration of Accelerate's that takes the place of parallel, precision and memory.
  std::string accelerate;
};

/// The job of one of its layouts: base settings, function and layout together.
Settings job_of(const Trial& trial, const Settings& layout);

/// Does the command line accept the job, as far as can be told before ranks start? Else why not.
std::optional<std::string> refusal(const Trial& trial, const Settings& layout);

/// Draws trials so that pairs of values come together evenly.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  /// The one of several candidates that brings most pairs which have not been together; at times
  /// one with a file of Accelerate's.
  Trial next();

  size_t num_pairs() const { return pairs_.size(); }  ///< of values that have been together
  size_t num_key_pairs() const;  ///< of keys, with a value that is not the default

 private:
  using Pair = std::pair<std::string, std::string>;  ///< two "key=value", in order

  template <typename T>
  const T& one_of(const std::vector<T>& list);
  int64_t number(int64_t low, int64_t high);
  bool chance(double probability);

  models::ModelShape draw_shape();
  void add_experts(models::ModelShape& shape);
  void draw_balance(Settings& function);
  Settings draw_role(Role role, double probability);
  Settings draw_mesh(const models::ModelShape& shape);
  std::optional<Settings> draw_layout(const Trial& trial);
  Trial draw_function();
  std::optional<Trial> candidate();
  Trial draw_accelerate();
  std::set<Pair> pairs_of(const Trial& trial) const;

  std::mt19937_64 random_;
  std::set<Pair> pairs_;
};

}  // namespace tessera::combinations
