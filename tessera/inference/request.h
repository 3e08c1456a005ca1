// What a user asks of a stored model: `tessera` writes it, the ranks read it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/choices.h"
#include "tessera/base/weight_format.h"

namespace tessera::inference {

enum class Task { generate, chat, compare, evaluate, quantise };

struct Request {
  Task task = Task::generate;
  std::string model;          ///< what checkpoint::open_training opens
  std::string other;          ///< of compare: an export of the model; of quantise: what to write
  std::string tokenizer;      ///< a folder or a file; "": the model's
  std::string chat_template;  ///< a file, or the name of one of the tokenizer's; "": the model's
  std::optional<FloatType> dtype;                  ///< of the weights; none: as they are stored
  WeightFormat weights = WeightFormat::as_stored;  ///< of the linear layers in blocks
  comm::BackendChoice backend = comm::BackendChoice::automatic;
  std::string prompt;        ///< of generate; "": all of standard input
  std::string system;        ///< of chat; "": none
  bool echo = false;         ///< the prompt is shown before what follows it
  bool interactive = false;  ///< somebody sits at a terminal
  bool speed = false;        ///< a line on stderr says tokens and seconds
  int64_t max_new_tokens = 512;
  uint64_t seed = 0;
  std::vector<std::string> stop;  ///< each ends a text, and is not shown
  /// generate::SamplingOptions; none: as the model's generation_config.json has them.
  std::optional<double> repetition_penalty = {}, temperature = {}, top_p = {}, min_p = {};
  std::optional<int64_t> top_k = {};
  std::vector<std::string> files;  ///< of evaluate
  data::RowShape shape = data::RowShape::automatic;
  data::Learn learn = data::Learn::assistant;
  int64_t seq_len = 0, stride = 0;  ///< of evaluate; 0: the model's positions, half of them
  int64_t max_rows = 0;             ///< of each file; 0: all
  bool skip_bad_lines = false;      ///< documents::DocumentsOptions, records::RecordOptions
  bool json = false;                ///< one object on standard output instead of lines
  std::string output;               ///< a file for that object; "": none
  std::string model_card;           ///< of quantise: README.md; "": none

  bool operator==(const Request&) const = default;
};

std::string to_bytes(const Request& request);  ///< CBOR: texts need not be UTF-8

/// A file with what to_bytes wrote.
Request read_request(const std::filesystem::path& path);

}  // namespace tessera::inference
