// What is worth trying of each key of the job file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/config/fields.h"

namespace tessera::combinations {

/// Values of a job file by dotted key, in YAML; a key that is missing has its default.
using Settings = std::map<std::string, std::string>;

enum class Role {
  function,  ///< says what is learned: the plain run that a trial is compared with has it as well
  layout,    ///< says how: must not change a number
  fixed,     ///< never varied
};

struct Tried {
  Role role = Role::fixed;
  std::vector<std::string>
      values;       ///< empty: all that the field list allows (choices, true, false)
  std::string why;  ///< why there are no values
};

/// An entry for each key of the field list; combinations_test.cpp sees to it.
const std::map<std::string, Tried>& tried();

/// The values of a key: those of its entry, or all that its field allows.
std::vector<std::string> values_of(const config::Field& field);

/// What every trial begins with: small, quiet and quick.
const Settings& base_settings();

}  // namespace tessera::combinations
