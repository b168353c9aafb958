// GB/s of plain bytes of the delta codec, a core, encoder and decoder with their checksums, for
// words that move by as much as training moves them. `bits` is what the form took for a word,
// `entropy` what no code of single differences can beat.
#include <benchmark/benchmark.h>

#include <vector>

#include "codec/delta.h"
#include "tests/unit/codec/words.h"

namespace {

using namespace fsccl;

constexpr size_t kBlocks = 16;  // more than a cache of one core holds, as in a unit

struct Step {
  WordList before, words;
  explicit Step(float rate) {
    Training training(kBlocks * kDeltaBlockWords);
    before = training.words();
    training.step(rate);
    words = training.words();
  }
};

const Step& step_of(int64_t rate) {
  static const Step steps[] = {Step(3e-4f), Step(1e-4f), Step(4e-5f), Step(1e-5f), Step(0)};
  return steps[rate];
}

std::vector<std::vector<uint8_t>> encoded(const Step& step, DeltaForm form, WordList* previous,
                                          DeltaScratch& scratch) {
  std::vector<std::vector<uint8_t>> blocks(
      kBlocks, std::vector<uint8_t>(delta_block_bound(kDeltaBlockWords)));
  for (size_t b = 0; b < kBlocks; b++) {
    const size_t at = b * kDeltaBlockWords;
    blocks[b].resize(encode_delta(&step.words[at], &(*previous)[at], kDeltaBlockWords, form,
                                  blocks[b].data(), scratch)
                         .bytes);
  }
  return blocks;
}

void report(benchmark::State& state, const Step& step, size_t bytes) {
  const auto words = static_cast<double>(step.words.size());
  state.SetBytesProcessed(static_cast<int64_t>(2 * step.words.size()) * state.iterations());
  state.counters["bits"] = 8 * static_cast<double>(bytes) / words;
  state.counters["entropy"] = entropy_of(step.words, step.before);
}

// Each iteration encodes from one state to the other, so that differences are as large both ways.
template <DeltaForm kForm>
void encode(benchmark::State& state) {
  const Step& step = step_of(state.range(0));
  DeltaScratch scratch;
  WordList previous = step.before;
  std::vector<uint8_t> out(delta_block_bound(kDeltaBlockWords));
  size_t bytes = 0;
  bool back = false;
  for (auto _ : state) {
    bytes = 0;
    const WordList& to = back ? step.before : step.words;
    for (size_t at = 0; at < to.size(); at += kDeltaBlockWords)
      bytes +=
          encode_delta(&to[at], &previous[at], kDeltaBlockWords, kForm, out.data(), scratch).bytes;
    back = !back;
  }
  report(state, step, bytes);
}

template <DeltaForm kForm>
void decode(benchmark::State& state) {
  const Step& step = step_of(state.range(0));
  DeltaScratch scratch;
  WordList previous = step.before, words = step.before;
  const auto there = encoded(step, kForm, &previous, scratch);
  Step back = step;
  std::swap(back.before, back.words);
  const auto home = encoded(back, kForm, &previous, scratch);
  size_t bytes = 0;
  for (const auto& block : there) bytes += block.size();
  bool returns = false;
  for (auto _ : state) {
    const auto& blocks = returns ? home : there;
    for (size_t b = 0; b < kBlocks; b++)
      if (decode_delta(blocks[b].data(), blocks[b].size(), &words[b * kDeltaBlockWords],
                       kDeltaBlockWords, scratch)
              .result != DeltaResult::good)
        state.SkipWithError("a block is not good");
    returns = !returns;
  }
  report(state, step, bytes);
}

// A step moves weights of 0.02 by 0: 3e-4, 1: 1e-4, 2: 4e-5, 3: 1e-5, 4: 0 (standard deviations).
BENCHMARK(encode<DeltaForm::nibbles>)->Name("encode_nibbles")->DenseRange(0, 4);
BENCHMARK(decode<DeltaForm::nibbles>)->Name("decode_nibbles")->DenseRange(0, 4);
BENCHMARK(encode<DeltaForm::coded>)->Name("encode_coded")->DenseRange(0, 4);
BENCHMARK(decode<DeltaForm::coded>)->Name("decode_coded")->DenseRange(0, 4);

}  // namespace

BENCHMARK_MAIN();
