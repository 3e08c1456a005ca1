// Every key of a DeepSpeed configuration (deepspeed.ai/docs/config-json and the code behind it, of
// August 2026) and what becomes of it here.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/accelerate/decision.h"
#include "tessera/config/accelerate/keys.h"

namespace tessera::config::accelerate {

class DeepspeedValues;

/// What becomes of one key, which `values` hold as a value: neither null nor "auto".
using DecideDeepspeed = Decision (*)(const DeepspeedValues& values, const Setting& setting);

struct DeepspeedKey {
  enum class Rule {
    ignored,  ///< never applicable: `note` says why
    only,     ///< honoured if one of `accepted`, else refused: `note` says why
    decided,  ///< `decide`
    section,  ///< whatever lies below, unchecked: not applicable if its "enabled" is false, else
              ///< refused
  };
  Key key;  ///< its name is the dotted path; no section
  Rule rule = Rule::ignored;
  std::string note;
  std::vector<std::string> accepted = {};  ///< with `only`
  DecideDeepspeed decide = nullptr;
  std::string auto_means = {};  ///< with "auto": what decides then; "": "auto" is no value
  std::string auto_value = {};  ///< .., or the value that Accelerate puts in its place

  const std::string& path() const { return key.name; }
};

/// Every key, in the order of DeepSpeed's documentation. Numbers are 0 or more unless the key's
/// range says otherwise. Built once.
const std::vector<DeepspeedKey>& deepspeed_file_keys();

/// The key of that path, or the section in which it lies; nullptr if there is none.
const DeepspeedKey* find_deepspeed_file_key(const std::string& path);

/// Is it a name with further names below it, as "zero_optimization"?
bool is_deepspeed_section(const std::string& path);

}  // namespace tessera::config::accelerate
