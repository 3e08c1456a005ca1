#include "tests/support/rank_server.h"

int main(int argc, char** argv) { return tessera::run_tests(argc, argv); }
