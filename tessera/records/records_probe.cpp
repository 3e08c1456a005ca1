// For tests/integration/parquet_peers.py: the rows of files as JSON lines on standard output, and after
// each file a line that says whether it was refused, and why.
//
//   tessera_records_probe FILE..
#include <fmt/format.h>

#include <iostream>

#include "tessera/base/error.h"
#include "tessera/records/reader.h"

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  for (int i = 1; i < argc; ++i) {
    std::string refusal;
    try {
      tessera::records::RecordReader reader({.paths = {argv[i]}});
      while (auto record = reader.next()) std::cout << record->value.dump() << "\n";
    } catch (const tessera::UserError& error) {
      refusal = error.what();
    }
    std::cout << nlohmann::json({"end", refusal}).dump() << "\n";
  }
  return 0;
}
