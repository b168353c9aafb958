#include "unit/host/delta_copies.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "base/round_up.h"
#include "kernels/crc32c.h"

namespace fsccl {
namespace {

constexpr uint64_t kAlignment = 64;

// A state from the sums of its blocks; never 0.
class State {
 public:
  explicit State(uint64_t words) : hash_(words) {}
  void add(uint32_t sum) { hash_ = mix_in_order(hash_, sum); }
  uint64_t value() const { return hash_ | 1; }

 private:
  uint64_t hash_;
};

}  // namespace

DeltaCopies::DeltaCopies(size_t hosts, const std::vector<LaneExchange::Range>& ranges)
    : hosts_(hosts) {
  for (const LaneExchange::Range& range : ranges) {
    if (!covers(range.dtype)) continue;
    Host& host = hosts_[range.holder];
    host.pieces.push_back({range.slot, range.offset, range.bytes / sizeof(uint16_t)});
    host.words += range.bytes / sizeof(uint16_t);
  }
  for (const Host& host : hosts_) bytes_ += round_up(host.words * sizeof(uint16_t), kAlignment);
}

uint64_t DeltaCopies::all_words() const {
  uint64_t words = 0;
  for (const Host& host : hosts_) words += host.words;
  return words;
}

void DeltaCopies::place(std::byte* memory) {
  for (Host& host : hosts_) {
    host.copy = reinterpret_cast<uint16_t*>(memory);
    memory += round_up(host.words * sizeof(uint16_t), kAlignment);
  }
}

void DeltaCopies::forget() {
  for (Host& host : hosts_) host.state = 0;
}

template <class Visit>
void DeltaCopies::Cursor::walk(uint64_t count, const Visit& visit) {
  while (count) {
    const Piece& piece = host_.pieces[piece_];
    const uint64_t now = std::min(count, piece.words - within_);
    visit(reinterpret_cast<uint16_t*>(slots_[piece.slot] + piece.offset) + within_, now);
    count -= now;
    within_ += now;
    if (within_ == piece.words) piece_++, within_ = 0;
  }
}

const uint16_t* DeltaCopies::Cursor::read(uint64_t count, std::vector<uint16_t>& block) {
  const Piece& piece = host_.pieces[piece_];
  if (piece.words - within_ >= count) {
    const uint16_t* words = nullptr;
    walk(count, [&](const uint16_t* at, uint64_t) { words = at; });
    return words;
  }
  uint16_t* to = block.data();
  walk(count, [&](const uint16_t* at, uint64_t now) {
    std::memcpy(to, at, now * sizeof *at);
    to += now;
  });
  return block.data();
}

void DeltaCopies::Cursor::write(const uint16_t* words, uint64_t count) {
  walk(count, [&](uint16_t* at, uint64_t now) {
    std::memcpy(at, words, now * sizeof *at);
    words += now;
  });
}

void DeltaCopies::take(size_t host, const std::vector<std::byte*>& slots, Workspace& work) {
  (void)encode(host, slots, DeltaForm::nibbles, nullptr, 0, work);
}

uint64_t DeltaCopies::encode_room(size_t host, uint64_t most) const {
  return most + delta_block_bound(std::min<uint64_t>(words(host), kDeltaBlockWords));
}

uint64_t DeltaCopies::encode(size_t host, const std::vector<std::byte*>& slots, DeltaForm form,
                             uint8_t* out, uint64_t most, Workspace& work) {
  Host& of = hosts_[host];
  Cursor cursor(of, slots);
  State state(of.words);
  uint64_t written = 0;
  bool codes = most > 0 && of.state != 0;
  for (uint64_t begin = 0; begin < of.words; begin += kDeltaBlockWords) {
    const uint64_t count = std::min<uint64_t>(kDeltaBlockWords, of.words - begin);
    const uint16_t* const words = cursor.read(count, work.block);
    if (codes) {
      const DeltaWritten block =
          encode_delta(words, of.copy + begin, count, form, out + written, work.scratch);
      state.add(block.sum);
      written += block.bytes;
      codes = written <= most;
    } else {
      std::memcpy(of.copy + begin, words, count * sizeof *words);
      state.add(crc32c(words, count * sizeof *words));
    }
  }
  of.state = state.value();
  return codes ? written : 0;
}

bool DeltaCopies::decode(size_t host, const std::vector<std::byte*>& slots, const uint8_t* in,
                         uint64_t size, Workspace& work) {
  Host& of = hosts_[host];
  Cursor cursor(of, slots);
  State state(of.words);
  of.state = 0;
  for (uint64_t begin = 0; begin < of.words; begin += kDeltaBlockWords) {
    const uint64_t count = std::min<uint64_t>(kDeltaBlockWords, of.words - begin);
    const DeltaRead block = decode_delta(in, size, of.copy + begin, count, work.scratch);
    if (block.result != DeltaResult::good) return false;
    cursor.write(of.copy + begin, count);
    state.add(block.sum);
    in += block.bytes;
    size -= block.bytes;
  }
  if (size) return false;
  of.state = state.value();
  return true;
}

}  // namespace fsccl
