// The frame of a fuzzer: a function that takes any bytes, and some inputs to begin with. With clang
// a target is a libFuzzer program (tests/fuzz/run.sh). Otherwise smoke.cpp is its main and mutates
// the seeds itself, so that the tests fuzz a little on every machine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

// Returns good inputs, of each kind that the target knows.
std::vector<std::string> fuzz_seeds();

// Returns an input whose first byte, `kind`, chooses what the target does with the rest.
inline std::string seed_of(uint8_t kind, std::string_view text) {
  std::string seed(text.size() + 1, static_cast<char>(kind));
  text.copy(seed.data() + 1, text.size());
  return seed;
}

// Ends the process if the invariant does not hold, which both kinds of main report.
#define FUZZ_REQUIRE(condition) \
  do {                          \
    if (!(condition)) abort();  \
  } while (0)
