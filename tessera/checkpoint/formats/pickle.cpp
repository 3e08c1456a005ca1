#include "tessera/checkpoint/formats/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

/// The length of the UTF-8 sequence that `text` begins with, 0 if it is none: too short, too long
/// for its code point, a surrogate, or beyond U+10FFFF.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first < 0xC2   ? 0
                        : first < 0xE0 ? 2
                        : first < 0xF0 ? 3
                        : first < 0xF5 ? 4
                                       : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool bad_second = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) > 0x9F) ||
                          (first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) > 0x8F);
  return bad_second ? 0 : length;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

/// May it be shown in an error?
bool is_identifier(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
  });
}

}  // namespace

/// A stack of values, a stack of marks in it, and a memo of values seen.
class PickleMachine {
 public:
  PickleMachine(const std::string& where, std::string_view bytes,
                std::span<const std::string_view> globals, Pickle& result)
      : where_(where), bytes_(bytes), globals_(globals), result_(result) {}

  void run() {
    if (bytes_.size() < 2 || bytes_[0] != '\x80') refuse("expected a pickle of protocol 2 to 5");
    while (!stopped_) {
      begin_ = next_;
      step(static_cast<unsigned char>(take(1)[0]));
      // More than any writer has at once, who batches; less than would cost much memory.
      if (stack_.size() > 1'000'000) refuse("too many values at once");
    }
    if (next_ != bytes_.size())
      refuse("expected its end here, got {} more bytes", bytes_.size() - next_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{}: byte {} of the pickle: {}", where_, begin_,
               fmt::format(format, std::forward<Args>(args)...));
  }

  // ---- bytes -----------------------------------------------------------------------------------

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - next_) refuse("truncated");
    const auto taken = bytes_.substr(next_, count);
    next_ += count;
    return taken;
  }

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  /// Two's complement of any length.
  int64_t long_integer(uint64_t count) {
    const auto digits = take(count);
    if (count > sizeof(int64_t)) refuse("an integer beyond 64 bits");
    int64_t value = !digits.empty() && (digits.back() & 0x80) ? -1 : 0;
    std::memcpy(&value, digits.data(), digits.size());
    return value;
  }

  double big_endian_double() {
    return std::bit_cast<double>(__builtin_bswap64(number<uint64_t>()));
  }

  std::string_view text(uint64_t count) {
    const auto taken = take(count);
    if (!is_utf8(taken)) refuse("expected text in UTF-8");
    return taken;
  }

  std::string_view line() {
    const auto end = bytes_.find('\n', next_);
    if (end == std::string_view::npos) refuse("truncated");
    const auto taken = take(end - next_);
    take(1);
    return taken;
  }

  // ---- stack -----------------------------------------------------------------------------------

  void push(PickleValue value) { stack_.push_back(value); }

  /// Values above the last mark; never those below it, which wait for another opcode.
  size_t available() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  PickleValue pop() {
    if (available() == 0) refuse("expected a value on the stack");
    const auto value = stack_.back();
    stack_.pop_back();
    return value;
  }

  template <typename T>
  T pop_as(std::string_view expected) {
    const auto value = pop();
    const T* found = std::get_if<T>(&value);
    if (found == nullptr) refuse("expected {}, got {}", expected, describe(value));
    return *found;
  }

  const PickleSequence* pop_tuple() {
    const auto* args = pop_as<const PickleSequence*>("a tuple of arguments");
    if (!args->is_tuple) refuse("expected a tuple of arguments, got a list");
    return args;
  }

  std::vector<PickleValue> pop_count(size_t count) {
    if (available() < count) refuse("expected {} values on the stack", count);
    std::vector<PickleValue> values(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return values;
  }

  std::vector<PickleValue> pop_to_mark() {
    if (marks_.empty()) refuse("expected a mark on the stack");
    auto values = pop_count(available());
    marks_.pop_back();
    return values;
  }

  // ---- values ----------------------------------------------------------------------------------

  // Every value on the stack is the result's own, and it is still being made.
  template <typename T>
  static T* owned(const T* value) {
    return const_cast<T*>(value);
  }

  void push_sequence(std::vector<PickleValue> items, bool is_tuple) {
    push(&result_.sequences_.emplace_back(PickleSequence{std::move(items), is_tuple}));
  }

  void append(const std::vector<PickleValue>& values) {
    if (available() == 0) refuse("expected a list on the stack");
    const auto* list = std::get_if<const PickleSequence*>(&stack_.back());
    if (list == nullptr || (*list)->is_tuple)
      refuse("expected a list, got {}", describe(stack_.back()));
    auto& items = owned(*list)->items;
    items.insert(items.end(), values.begin(), values.end());
  }

  void set_items(const std::vector<PickleValue>& values) {
    if (available() == 0) refuse("expected a dict on the stack");
    const auto* dict = dict_of(stack_.back());
    if (dict == nullptr) refuse("expected a dict, got {}", describe(stack_.back()));
    if (values.size() % 2 != 0) refuse("expected keys with values, got {} in all", values.size());
    auto& items = owned(dict)->items;
    for (size_t i = 0; i < values.size(); i += 2) items.emplace_back(values[i], values[i + 1]);
  }

  void push_global(std::string_view module, std::string_view name) {
    if (!is_identifier(module) || !is_identifier(name))
      refuse("expected the name of a class or function");
    const auto full = fmt::format("{}.{}", module, name);
    const auto known = std::ranges::find(globals_, full);
    if (known == globals_.end())
      refuse("refused {}, which is none of the names that belong here", full);
    push(PickleGlobal{*known});
  }

  void push_global_lines() {
    const auto module = line();
    push_global(module, line());
  }

  void push_global_texts() {
    const auto name = pop_as<std::string_view>("a name");
    push_global(pop_as<std::string_view>("the name of a module"), name);
  }

  void call() {
    const auto* args = pop_tuple();
    const auto type = pop_as<PickleGlobal>("a class or function").name;
    push(&result_.objects_.emplace_back(PickleObject{.type = type, .args = args}));
  }

  void build() {
    const auto state = pop();
    if (available() == 0) refuse("expected an object on the stack");
    const auto* object = std::get_if<const PickleObject*>(&stack_.back());
    if (object == nullptr) refuse("expected an object, got {}", describe(stack_.back()));
    owned(*object)->state = state;
  }

  // ---- memo ------------------------------------------------------------------------------------

  void memoize(uint64_t index) {
    if (available() == 0) refuse("expected a value on the stack");
    // Writers count up, so the memo never holds more than the file does.
    if (index != memo_.size()) refuse("expected memo entry {}, got {}", memo_.size(), index);
    memo_.push_back(stack_.back());
  }

  void recall(uint64_t index) {
    if (index >= memo_.size()) refuse("no memo entry {}", index);
    push(memo_[index]);
  }

  void protocol(uint8_t version) {
    if (begin_ != 0 || version < 2 || version > 5)
      refuse("expected a pickle of protocol 2 to 5, got {}", version);
  }

  void stop() {
    if (!marks_.empty() || stack_.size() != 1) refuse("expected one value at the end");
    result_.root_ = pop();
    stopped_ = true;
  }

  void step(unsigned char opcode) {
    if (!constant(opcode) && !container(opcode) && !reference(opcode))
      refuse("unknown opcode {:#04x}", opcode);
  }

  bool constant(unsigned char opcode) {
    switch (opcode) {
      case 'N':
        return push(PickleNone{}), true;
      case 0x88:
        return push(true), true;
      case 0x89:
        return push(false), true;
      case 'J':
        return push(int64_t{number<int32_t>()}), true;
      case 'K':
        return push(int64_t{number<uint8_t>()}), true;
      case 'M':
        return push(int64_t{number<uint16_t>()}), true;
      case 0x8a:
        return push(long_integer(number<uint8_t>())), true;
      case 'G':
        return push(big_endian_double()), true;
      case 0x8c:
        return push(text(number<uint8_t>())), true;
      case 'X':
        return push(text(number<uint32_t>())), true;
      case 0x8d:
        return push(text(number<uint64_t>())), true;
      case 'C':
        return push(PickleBytes{take(number<uint8_t>())}), true;
      case 'B':
        return push(PickleBytes{take(number<uint32_t>())}), true;
      case 0x8e:
        return push(PickleBytes{take(number<uint64_t>())}), true;
      default:
        return false;
    }
  }

  bool container(unsigned char opcode) {
    switch (opcode) {
      case '(':
        return marks_.push_back(stack_.size()), true;
      case ')':
        return push_sequence({}, true), true;
      case 't':
        return push_sequence(pop_to_mark(), true), true;
      case 0x85:
        return push_sequence(pop_count(1), true), true;
      case 0x86:
        return push_sequence(pop_count(2), true), true;
      case 0x87:
        return push_sequence(pop_count(3), true), true;
      case ']':
        return push_sequence({}, false), true;
      case 'a':
        return append(pop_count(1)), true;
      case 'e':
        return append(pop_to_mark()), true;
      case '}':
        return push(&result_.dicts_.emplace_back()), true;
      case 's':
        return set_items(pop_count(2)), true;
      case 'u':
        return set_items(pop_to_mark()), true;
      default:
        return false;
    }
  }

  bool reference(unsigned char opcode) {
    switch (opcode) {
      case 0x80:
        return protocol(number<uint8_t>()), true;
      case 0x95:
        return number<uint64_t>(), true;  // a frame: only for reading ahead
      case '.':
        return stop(), true;
      case 'c':
        return push_global_lines(), true;
      case 0x93:
        return push_global_texts(), true;
      case 'R':
      case 0x81:
        return call(), true;
      case 'b':
        return build(), true;
      case 'Q':
        return push(&result_.persistents_.emplace_back(PicklePersistent{pop()})), true;
      case 'q':
        return memoize(number<uint8_t>()), true;
      case 'r':
        return memoize(number<uint32_t>()), true;
      case 0x94:
        return memoize(memo_.size()), true;
      case 'h':
        return recall(number<uint8_t>()), true;
      case 'j':
        return recall(number<uint32_t>()), true;
      default:
        return false;
    }
  }

  const std::string& where_;
  std::string_view bytes_;
  std::span<const std::string_view> globals_;
  Pickle& result_;
  size_t begin_ = 0;  ///< of the opcode at work
  size_t next_ = 0;
  bool stopped_ = false;
  std::vector<PickleValue> stack_, memo_;
  std::vector<size_t> marks_;
};

Pickle::Pickle(const std::string& where, std::string_view bytes,
               std::span<const std::string_view> globals) {
  PickleMachine(where, bytes, globals, *this).run();
}

}  // namespace tessera::checkpoint
