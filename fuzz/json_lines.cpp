#include "fuzz/records_target.h"
#include "fuzz/target.h"
#include "tessera/records/csv_rows.h"
#include "tessera/records/json_rows.h"

// The same bytes as a file of each type that is a text, or a compressed one.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera::records;
  constexpr size_t kMaxRowBytes = 1 << 16;
  const auto read = [&](auto open) {
    tessera::fuzz::run(data, size, [&](std::string_view bytes) {
      const tessera::fuzz::MemoryFile file(bytes);
      auto rows = open(file.path());
      tessera::fuzz::read_rows(rows);
    });
  };
  for (const auto compression : {Compression::none, Compression::gzip, Compression::zstd})
    read([&](const auto& path) { return JsonLines(path, compression, kMaxRowBytes); });
  read([&](const auto& path) { return JsonList(path, Compression::none, kMaxRowBytes); });
  read([&](const auto& path) { return CsvRows(path, Compression::none, ',', kMaxRowBytes); });
  return 0;
}
