// Pickles, Python's format of objects, as plain values. Nothing is imported, called or executed:
// a class or function is a name, and what Python would make by calling it is a record of the call.
//
// Format: https://docs.python.org/3/library/pickletools.html, protocols 2 to 5; of its opcodes,
// those that torch.save and torch.distributed.checkpoint write.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::checkpoint {

struct PickleSequence;
struct PickleDict;
struct PickleObject;
struct PicklePersistent;

struct PickleNone {};
struct PickleBytes {
  std::string_view bytes;
};
/// A class or function, by module and name: "torch.Size".
struct PickleGlobal {
  std::string_view name;
};

/// One value. Text is UTF-8. What is pointed to belongs to the Pickle and may be shared, or contain
/// itself: descend by what is expected to be there, never through everything.
using PickleValue = std::variant<PickleNone, bool, int64_t, double, std::string_view, PickleBytes,
                                 PickleGlobal, const PickleSequence*, const PickleDict*,
                                 const PickleObject*, const PicklePersistent*>;

struct PickleSequence {
  std::vector<PickleValue> items;
  bool is_tuple = false;
};

/// A dict's items, in the order of the file; a key may stand there twice.
struct PickleDict {
  std::vector<std::pair<PickleValue, PickleValue>> items;

  /// The last value under a text; nullptr if there is none.
  const PickleValue* find(std::string_view key) const;
};

/// What calling `type` with `args` would give.
struct PickleObject {
  std::string_view type;
  const PickleSequence* args = nullptr;
  PickleValue state;  ///< what its __setstate__ would get
  PickleDict dict;    ///< of a collections.OrderedDict: its items
};

/// An object that is stored elsewhere.
struct PicklePersistent {
  PickleValue id;
};

/// A pickle's values, which it owns.
class Pickle {
 public:
  /// Reads `bytes`, all of it, which must outlive the Pickle: texts point into it. UserError with
  /// `where` and the byte: damage, an unknown opcode, a class or function that is not among
  /// `globals` (static names), an integer beyond 64 bits, text that is not UTF-8. Cost: time linear
  /// in the size, memory at most some hundred bytes for each byte.
  Pickle(const std::string& where, std::string_view bytes,
         std::span<const std::string_view> globals);

  const PickleValue& root() const { return root_; }

 private:
  friend class PickleMachine;
  std::deque<PickleSequence> sequences_;
  std::deque<PickleDict> dicts_;
  std::deque<PickleObject> objects_;
  std::deque<PicklePersistent> persistents_;
  PickleValue root_;
};

/// What a value is, in the words of an error: "None", "a tuple of 3", "torch.Size(..)", ..
std::string describe(const PickleValue& value);

/// The items of a dict or an OrderedDict, else nullptr.
const PickleDict* dict_of(const PickleValue& value);

/// The call of `type`, else nullptr.
const PickleObject* object_of(const PickleValue& value, std::string_view type);

/// The sizes of a tuple, a list or a torch.Size: whole numbers of 0 or more, at most 64; nullopt if
/// it is none.
std::optional<std::vector<int64_t>> sizes_of(const PickleValue& value);

}  // namespace tessera::checkpoint
