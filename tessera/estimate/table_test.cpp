#include "tessera/estimate/table.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"

namespace tessera::estimate {
namespace {

const std::vector<LoadDtype> kAll = {LoadDtype::float32, LoadDtype::float16, LoadDtype::int8,
                                     LoadDtype::int4};

// The expected texts are what Accelerate 1.15 prints.
TEST(LoadingTable, IsAcceleratesCharacterForCharacter) {
  EXPECT_EQ(loading_table("bert-base-cased", 433249280, 90669056, kAll),
            R"(┌────────────────────────────────────────────────────┐
│     Memory Usage for loading `bert-base-cased`     │
├───────┬─────────────┬──────────┬───────────────────┤
│ dtype │Largest Layer│Total Size│Training using Adam│
├───────┼─────────────┼──────────┼───────────────────┤
│float32│   86.47 MB  │413.18 MB │      1.61 GB      │
│float16│   43.23 MB  │206.59 MB │     826.36 MB     │
│  int8 │   21.62 MB  │103.29 MB │        N/A        │
│  int4 │   10.81 MB  │ 51.65 MB │        N/A        │
└───────┴─────────────┴──────────┴───────────────────┘
)");
}

TEST(LoadingTable, WidensForATitleAsAccelerateDoes) {
  EXPECT_EQ(loading_table("meta-llama/Meta-Llama-3-8B", 30288142336, 2101346304, kAll),
            R"(┌──────────────────────────────────────────────────────┐
│Memory Usage for loading `meta-llama/Meta-Llama-3-8B` │
├───────┬─────────────┬──────────┬─────────────────────┤
│ dtype │Largest Layer│Total Size│ Training using Adam │
├───────┼─────────────┼──────────┼─────────────────────┤
│float32│   1.96 GB   │ 28.21 GB │      112.83 GB      │
│float16│  1002.0 MB  │ 14.1 GB  │       56.42 GB      │
│  int8 │   501.0 MB  │ 7.05 GB  │         N/A         │
│  int4 │   250.5 MB  │ 3.53 GB  │         N/A         │
└───────┴─────────────┴──────────┴─────────────────────┘
)");
  EXPECT_EQ(loading_table("mmmmmmmmmmmmmmmmmmmmmmmmmmmmmm", 1124800395214848, 6597069766656,
                          {LoadDtype::float16, LoadDtype::float32}),
            R"(┌──────────────────────────────────────────────────────────┐
│Memory Usage for loading `mmmmmmmmmmmmmmmmmmmmmmmmmmmmmm` │
├───────┬─────────────┬──────────┬─────────────────────────┤
│ dtype │Largest Layer│Total Size│   Training using Adam   │
├───────┼─────────────┼──────────┼─────────────────────────┤
│float16│    3.0 TB   │ 511.5 TB │          2.0 PB         │
│float32│    6.0 TB   │1023.0 TB │          4.0 PB         │
└───────┴─────────────┴──────────┴─────────────────────────┘
)");
}

// Whole bytes without decimals in float32 alone; widths count letters, not bytes of UTF-8.
TEST(LoadingTable, SmallModelsAndOtherScripts) {
  EXPECT_EQ(loading_table("mmmmmmmmmmmmmmmmmmm", 4096, 512, kAll),
            R"(┌─────────────────────────────────────────────────────┐
│    Memory Usage for loading `mmmmmmmmmmmmmmmmmmm`   │
├───────┬─────────────┬───────────┬───────────────────┤
│ dtype │Largest Layer│ Total Size│Training using Adam│
├───────┼─────────────┼───────────┼───────────────────┤
│float32│  512 bytes  │   4.0 KB  │      16.0 KB      │
│float16│ 256.0 bytes │   2.0 KB  │       8.0 KB      │
│  int8 │ 128.0 bytes │   1.0 KB  │        N/A        │
│  int4 │  64.0 bytes │512.0 bytes│        N/A        │
└───────┴─────────────┴───────────┴───────────────────┘
)");
  EXPECT_EQ(loading_table("é/模型-é/模型-é/模型-é/模型-", 123456789, 1047, kAll),
            R"(┌────────────────────────────────────────────────────┐
│  Memory Usage for loading `é/模型-é/模型-é/模型-é/模型-`   │
├───────┬─────────────┬──────────┬───────────────────┤
│ dtype │Largest Layer│Total Size│Training using Adam│
├───────┼─────────────┼──────────┼───────────────────┤
│float32│   1.02 KB   │117.74 MB │     470.95 MB     │
│float16│ 523.5 bytes │ 58.87 MB │     235.48 MB     │
│  int8 │ 261.75 bytes│ 29.43 MB │        N/A        │
│  int4 │ 130.88 bytes│ 14.72 MB │        N/A        │
└───────┴─────────────┴──────────┴───────────────────┘
)");
}

TEST(PhaseTable, OfBertBase) {
  EXPECT_EQ(phase_table("bert-base-cased", 433249280, kAll),
            R"(┌──────────────────────────────────────────────────────────────────┐
│        Training `bert-base-cased` with Adam, batch size 1        │
├───────┬─────────┬─────────┬─────────────┬──────────────┬─────────┤
│ dtype │  Model  │Gradients│Backward pass│Optimizer step│ Highest │
├───────┼─────────┼─────────┼─────────────┼──────────────┼─────────┤
│float32│413.18 MB│413.18 MB│  826.36 MB  │   1.61 GB    │ 1.61 GB │
│float16│413.18 MB│619.77 MB│  826.36 MB  │  826.36 MB   │826.36 MB│
└───────┴─────────┴─────────┴─────────────┴──────────────┴─────────┘
)");
  EXPECT_EQ(phase_table("bert-base-cased", 433249280, {LoadDtype::int8, LoadDtype::int4}), "");
}

TEST(Dtypes, UnknownNamesTheNearest) {
  EXPECT_EQ(testing::message_of([] { parse_load_dtype("flaot16"); }),
            "estimate-memory: --dtypes: expected float32, float16, int8, int4, got 'flaot16'; did "
            "you mean 'float16'?");
}

}  // namespace
}  // namespace tessera::estimate
