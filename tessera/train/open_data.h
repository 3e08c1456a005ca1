// The rows that a job learns from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/data/rows.h"
#include "tessera/text/tokenizer.h"

namespace tessera::train {

struct OpenedData {
  std::shared_ptr<const data::Rows> train;
  std::shared_ptr<const data::Rows> validation;      ///< nullptr: none
  std::shared_ptr<const text::Tokenizer> tokenizer;  ///< of records; nullptr: of others
  /// What was read and left out: a line, or one for each entry of data.train that has a weight; none:
  /// nothing to say.
  std::vector<std::string> notes;
};

/// The paths for which entries of the section stand. Data sets of the Hub are in the cache: `tessera train` has seen to it.
std::vector<std::string> data_paths(const std::vector<std::string>& entries);

/// Opens token files and text, or reads records (data.format) on `num_threads`. UserError, also at
/// tokens beyond `vocab_size`.
OpenedData open_data(const config::RunConfig& config, int64_t vocab_size, int num_threads);

}  // namespace tessera::train
