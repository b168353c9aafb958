// The helpers that tests of codecs share: words of some kinds, a step of training on them, the
// formula of nibbles written out plainly, and the instruction sets of this machine.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/targets.h"

namespace fsccl {

using Random = std::mt19937_64;
using WordList = std::vector<uint16_t>;

inline uint16_t bfloat16_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Weights from N(0, 0.02) in fp32, which step() changes by about as much as a step of Adam does.
// words() rounds them to bf16.
struct Training {
  explicit Training(size_t count, uint64_t seed = 1) : random(seed), master(count) {
    std::normal_distribution<float> normal(0, 0.02f);
    for (float& weight : master) weight = normal(random);
  }
  void step(float rate) {
    std::normal_distribution<float> normal(0, rate);
    for (float& weight : master) weight += normal(random);
  }
  WordList words() const {
    WordList made(master.size());
    for (size_t i = 0; i < made.size(); i++) made[i] = bfloat16_of(master[i]);
    return made;
  }
  Random random;
  std::vector<float> master;
};

inline WordList any_words(size_t count, Random& random) {
  WordList made(count);
  for (uint16_t& word : made) word = static_cast<uint16_t>(random());
  return made;
}

// The zigzag difference, as nibbles.h defines it.
inline uint16_t folded_difference(uint16_t word, uint16_t previous) {
  const auto order = [](uint16_t w) { return static_cast<uint16_t>(w & 0x8000 ? ~w : w | 0x8000); };
  const auto difference =
      static_cast<int16_t>(static_cast<uint16_t>(order(word) - order(previous)));
  return static_cast<uint16_t>(difference >= 0 ? 2 * difference : -2 * difference - 1);
}

// Returns the entropy of the differences in bits a word: no code of single differences needs fewer.
inline double entropy_of(const WordList& words, const WordList& previous) {
  std::vector<double> counts(65536);
  for (size_t i = 0; i < words.size(); i++) counts[folded_difference(words[i], previous[i])]++;
  double bits = 0;
  for (const double count : counts)
    if (count > 0) bits -= count * std::log2(count / static_cast<double>(words.size()));
  return bits / static_cast<double>(words.size());
}

// Runs `act` with each instruction set that this processor and this build have; the portable one is
// among them.
template <class Act>
void on_each_target(const Act& act) {
  for (int64_t left = supported_targets(); left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    limit_targets_for_test(target);
    act(target);
    limit_targets_for_test(0);
  }
}

}  // namespace fsccl
