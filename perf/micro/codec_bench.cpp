// Measures encoders and decoders of the codecs, with their checksums, in GB/s of plain bytes on one
// core. The delta codec gets words that move by as much as training moves them; `bits` is what the
// form took for a word, and `entropy` what no code of single differences can beat. Block codecs get
// bf16 words, and fp32 sums with feedback.
#include <benchmark/benchmark.h>

#include <vector>

#include "codec/blocks.h"
#include "codec/delta.h"
#include "tests/unit/codec/words.h"

namespace {

using namespace fsccl;

constexpr size_t kBlocks = 16;  // more than the cache of one core holds, as in a unit

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

// Iterations encode from one state to the other and back, with equally large differences.
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

// The argument says by how much a step moves weights of 0.02 (standard deviations): 0 stands for
// 3e-4, 1 for 1e-4, 2 for 4e-5, 3 for 1e-5, 4 for 0.
BENCHMARK(encode<DeltaForm::nibbles>)->Name("encode_nibbles")->DenseRange(0, 4);
BENCHMARK(decode<DeltaForm::nibbles>)->Name("decode_nibbles")->DenseRange(0, 4);
BENCHMARK(encode<DeltaForm::coded>)->Name("encode_coded")->DenseRange(0, 4);
BENCHMARK(decode<DeltaForm::coded>)->Name("decode_coded")->DenseRange(0, 4);

// ---- block codecs, over 4 MiB

const BlockForm kForms[] = {{BlockKind::int8, 128},
                            {BlockKind::fp8, 128},
                            {BlockKind::mxfp8, 32},
                            {BlockKind::int4, 128},
                            {BlockKind::bf16, 128}};

void encode_words(benchmark::State& state) {
  const BlockForm& form = kForms[state.range(0)];
  const WordList& words = step_of(0).words;
  std::vector<uint8_t> out(form.chunk_bytes(kBlocksMost) + 2 * kBlocksMost);
  for (auto _ : state)
    for (size_t at = 0; at < words.size(); at += kBlocksMost)
      benchmark::DoNotOptimize(encode_blocks(&words[at], FSCCL_BFLOAT16, kBlocksMost, form,
                                             {.room = 2 * kBlocksMost}, out.data()));
  state.SetBytesProcessed(static_cast<int64_t>(2 * words.size()) * state.iterations());
}

void decode_words(benchmark::State& state) {
  const BlockForm& form = kForms[state.range(0)];
  WordList words = step_of(0).words;
  std::vector<uint8_t> chunk(form.chunk_bytes(kBlocksMost) + 2 * kBlocksMost);
  (void)encode_blocks(words.data(), FSCCL_BFLOAT16, kBlocksMost, form, {.room = 2 * kBlocksMost},
                      chunk.data());
  for (auto _ : state)
    for (size_t at = 0; at < words.size(); at += kBlocksMost)
      if (!decode_blocks(chunk.data(), chunk.size(), &words[at], FSCCL_BFLOAT16, kBlocksMost, form))
        state.SkipWithError("a chunk is not good");
  state.SetBytesProcessed(static_cast<int64_t>(2 * words.size()) * state.iterations());
}

std::vector<float> gradients() {
  std::vector<float> made(kBlocks * kBlocksMost);
  const WordList& words = step_of(0).words;
  for (size_t i = 0; i < made.size(); i++) made[i] = static_cast<float>(words[i]) * 1e-6f - 0.03f;
  return made;
}

void encode_gradients(benchmark::State& state) {
  const BlockForm& form = kForms[state.range(0)];
  const std::vector<float> given = gradients();
  std::vector<float> feedback(given.size());
  std::vector<uint8_t> out(form.chunk_bytes(kBlocksMost));
  for (auto _ : state)
    for (size_t at = 0; at < given.size(); at += kBlocksMost)
      encode_sums(&given[at], FSCCL_FLOAT32, kBlocksMost, form, &feedback[at], out.data());
  state.SetBytesProcessed(static_cast<int64_t>(4 * given.size()) * state.iterations());
}

void add_gradients(benchmark::State& state) {
  const BlockForm& form = kForms[state.range(0)];
  const std::vector<float> given = gradients();
  std::vector<float> sums(given.size());
  std::vector<uint8_t> chunk(form.chunk_bytes(kBlocksMost));
  encode_sums(given.data(), FSCCL_FLOAT32, kBlocksMost, form, nullptr, chunk.data());
  for (auto _ : state)
    for (size_t at = 0; at < sums.size(); at += kBlocksMost)
      if (!add_sums(chunk.data(), chunk.size(), &sums[at], kBlocksMost, form, true))
        state.SkipWithError("a chunk is not good");
  state.SetBytesProcessed(static_cast<int64_t>(4 * given.size()) * state.iterations());
}

// The argument is an index in kForms: 0 is int8, 1 fp8, 2 mxfp8, 3 int4, 4 bf16.
BENCHMARK(encode_words)->DenseRange(0, 2);
BENCHMARK(decode_words)->DenseRange(0, 2);
BENCHMARK(encode_gradients)->Arg(0)->Arg(3)->Arg(4);
BENCHMARK(add_gradients)->Arg(0)->Arg(3)->Arg(4);

}  // namespace

BENCHMARK_MAIN();
