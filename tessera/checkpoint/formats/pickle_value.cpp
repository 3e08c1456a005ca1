#include <fmt/format.h>

#include "tessera/checkpoint/formats/pickle.h"

namespace tessera::checkpoint {

const PickleValue* PickleDict::find(std::string_view key) const {
  for (auto item = items.rbegin(); item != items.rend(); ++item) {
    const auto* text = std::get_if<std::string_view>(&item->first);
    if (text != nullptr && *text == key) return &item->second;
  }
  return nullptr;
}

std::string describe(const PickleValue& value) {
  struct Describe {
    std::string operator()(PickleNone) const { return "None"; }
    std::string operator()(bool flag) const { return flag ? "True" : "False"; }
    std::string operator()(int64_t number) const { return fmt::format("{}", number); }
    std::string operator()(double number) const { return fmt::format("{}", number); }
    std::string operator()(std::string_view text) const {
      return fmt::format("a text of {} bytes", text.size());
    }
    std::string operator()(PickleBytes bytes) const {
      return fmt::format("{} bytes", bytes.bytes.size());
    }
    std::string operator()(PickleGlobal global) const { return std::string(global.name); }
    std::string operator()(const PickleSequence* sequence) const {
      return fmt::format("a {} of {}", sequence->is_tuple ? "tuple" : "list",
                         sequence->items.size());
    }
    std::string operator()(const PickleDict* dict) const {
      return fmt::format("a dict of {}", dict->items.size());
    }
    std::string operator()(const PickleObject* object) const {
      return fmt::format("{}(..)", object->type);
    }
    std::string operator()(const PicklePersistent*) const { return "a storage"; }
  };
  return std::visit(Describe{}, value);
}

const PickleDict* dict_of(const PickleValue& value) {
  if (const auto* dict = std::get_if<const PickleDict*>(&value)) return *dict;
  const auto* ordered = object_of(value, "collections.OrderedDict");
  return ordered == nullptr ? nullptr : &ordered->dict;
}

const PickleObject* object_of(const PickleValue& value, std::string_view type) {
  const auto* object = std::get_if<const PickleObject*>(&value);
  return object == nullptr || (*object)->type != type ? nullptr : *object;
}

std::optional<std::vector<int64_t>> sizes_of(const PickleValue& value) {
  const PickleValue* list = &value;
  if (const auto* size = object_of(value, "torch.Size"); size && size->args->items.size() == 1)
    list = &size->args->items[0];
  const auto* sequence = std::get_if<const PickleSequence*>(list);
  constexpr size_t kMaxDims = 64;  // of torch; the same one may be shared by many
  if (sequence == nullptr || (*sequence)->items.size() > kMaxDims) return std::nullopt;
  std::vector<int64_t> sizes;
  for (const auto& item : (*sequence)->items) {
    const auto* size = std::get_if<int64_t>(&item);
    if (size == nullptr || *size < 0) return std::nullopt;
    sizes.push_back(*size);
  }
  return sizes;
}

}  // namespace tessera::checkpoint
