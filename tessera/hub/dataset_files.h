// Which files of a data set make a split.
#pragma once

#include <string>
#include <vector>

namespace tessera::hub {

/// What is wanted of a data set.
struct SplitName {
  std::string config;  ///< one of several parts or versions; "": the default
  std::string split = "train";
};

/// The file in which a data set says of itself what its files are.
inline constexpr const char* kCard = "README.md";

/// The names among `all` that make a split, in the order of their bytes. If `card` (the content of
/// kCard; "": none) has `configs` with `data_files` or `data_dir`, as it says. Else by names, of files
/// of known type: "data/train-00000-of-00002.parquet", "test.jsonl", "validation/a.csv"; files of
/// which none names a split are all "train", and a configuration is a folder.
/// https://huggingface.co/docs/datasets/repository_structure
/// UserError, which begins with `who`: no such configuration or split, with those that are there; a part
/// of a split is missing; a card that cannot be read.
std::vector<std::string> split_files(const std::vector<std::string>& all, const std::string& card,
                                     const SplitName& wanted, const std::string& who);

}  // namespace tessera::hub
