// A main for fuzz targets without libFuzzer. `PROGRAM RUNS [FILE...]` runs the seeds, the files,
// and RUNS mutations of them, which are the same in every run. `PROGRAM --seeds FOLDER` writes the
// seeds to the folder, for libFuzzer to begin with.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "fuzz.h"

namespace {

using Random = std::mt19937_64;

std::string read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void run(const std::string& input) {
  // The copy has exactly this size, so that a sanitizer sees a read beyond it.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

// Makes one random change, of a kind that libFuzzer makes, too.
void mutate(std::string* text, const std::vector<std::string>& seeds, Random& random) {
  using namespace std::string_view_literals;
  static constexpr std::string_view kWords[] = {
      "\0\0\0\0"sv, "\xff\xff\xff\xff"sv,     "-1"sv, "1e999"sv, "\"\""sv, "{}"sv, "[]"sv,
      "null"sv,     "99999999999999999999"sv, ".."sv, ","sv};
  const auto at = [&](size_t size) { return size ? random() % size : 0; };
  const size_t place = at(text->size());
  switch (random() % 8) {
    case 0:
      if (!text->empty()) (*text)[place] = static_cast<char>(random());
      break;
    case 1:
      if (!text->empty()) (*text)[place] = static_cast<char>((*text)[place] ^ (1 << random() % 8));
      break;
    case 2:
      text->erase(place, 1 + at(16));
      break;
    case 3:
      text->insert(place, 1, static_cast<char>(random()));
      break;
    case 4:
      text->insert(place, kWords[random() % std::size(kWords)]);
      break;
    case 5:
      text->insert(place, text->substr(at(text->size()), 1 + at(64)));
      break;
    case 6: {
      const std::string& other = seeds[random() % seeds.size()];
      text->replace(place, std::string::npos, other.substr(at(other.size())));
      break;
    }
    default:
      text->resize(place);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> seeds = fuzz_seeds();
  if (argc == 3 && std::strcmp(argv[1], "--seeds") == 0) {
    for (size_t i = 0; i < seeds.size(); i++)
      std::ofstream(std::string(argv[2]) + "/seed" + std::to_string(i), std::ios::binary)
          << seeds[i];
    return 0;
  }
  const long runs = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 0;
  for (int i = 2; i < argc; i++) seeds.push_back(read_file(argv[i]));
  for (const std::string& seed : seeds) run(seed);
  Random random(1);
  for (long i = 0; i < runs; i++) {
    std::string text = seeds[random() % seeds.size()];
    for (uint64_t changes = 1 + random() % 6; changes > 0; changes--) mutate(&text, seeds, random);
    if (text.size() > (1u << 16)) text.resize(1u << 16);
    run(text);
  }
  std::printf("%zu seeds, %ld mutations\n", seeds.size(), runs);
}
