# Fused attention: what kernels/CMakeLists.txt builds of it.
set(TESSERA_ATTENTION_SOURCES attention.cpp)
tessera_isa_sources(TESSERA_ATTENTION_SOURCES cpu/attention)
set(TESSERA_ATTENTION_TESTS attention_test.cpp)
set(TESSERA_ATTENTION_BENCHES attention_bench.cpp)
