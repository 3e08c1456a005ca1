#include "fuzz/records_target.h"
#include "fuzz/target.h"
#include "tessera/records/parquet_rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessera::fuzz::run(data, size, [](std::string_view bytes) {
    const tessera::fuzz::MemoryFile file(bytes);
    tessera::records::ParquetRows rows(file.path(), {.row_bytes = 1 << 16, .page_bytes = 1 << 22});
    tessera::fuzz::read_rows(rows);
  });
}
