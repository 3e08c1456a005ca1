// Files of rows: their types by name, and which of them a path stands for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::records {

enum class Format { json_lines, json, csv, tsv, parquet };
enum class Compression { none, gzip, zstd };

struct FileType {
  Format format = Format::json_lines;
  Compression compression = Compression::none;
};

/// What the messages list as known.
inline constexpr const char* kKnownTypes =
    ".jsonl, .ndjson, .json, .csv, .tsv (each also with .gz or .zst) or .parquet";

/// By the end of the name, in letters of either case; nothing if it is none of kKnownTypes.
std::optional<FileType> type_by_name(const std::filesystem::path& path);

struct DataFile {
  std::filesystem::path path;
  FileType type;
};

/// The files that `path` stands for: a file; a folder, whose files of known type are taken in the
/// order of list_files(); a pattern with `*`, `?`, `[..]` within a name and `**` for any folders
/// between, whose files of known type are taken in the order of their bytes. Neither a pattern's
/// `*` nor its `**` takes names that begin with a dot, and `**` follows no links to folders.
/// UserError if there is nothing, or nothing of known type.
std::vector<DataFile> find_files(const std::string& path);

}  // namespace tessera::records
