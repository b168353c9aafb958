#include "unit/host/delta_copies.h"

#include <algorithm>
#include <cstring>

#include "base/round_up.h"
#include "kernels/crc32c.h"

namespace fsccl {
namespace {

constexpr uint64_t kAlignment = 64;

}  // namespace

DeltaCopies::DeltaCopies(size_t hosts, const std::vector<LaneExchange::Range>& ranges,
                         size_t block_words)
    : hosts_(hosts), block_words_(block_words) {
  for (const LaneExchange::Range& range : ranges) {
    if (!covers(range.dtype)) continue;
    Host& host = hosts_[range.holder];
    host.pieces.push_back({range.slot, range.offset, range.bytes / sizeof(uint16_t)});
    host.words += range.bytes / sizeof(uint16_t);
  }
  for (const Host& host : hosts_) bytes_ += round_up(host.words * sizeof(uint16_t), kAlignment);
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

void DeltaCopies::begin(size_t host) {
  Host& of = hosts_[host];
  of.passed = State(of.words);
  of.done = of.within = 0;
  of.piece = 0;
  of.state = of.words ? 0 : of.passed.value();
}

size_t DeltaCopies::next_words(const Host& host) const {
  return std::min<uint64_t>(block_words_, host.words - host.done);
}

void DeltaCopies::passed(Host& host, size_t words, uint32_t sum) {
  host.passed.add(sum);
  host.done += words;
  if (host.done == host.words) host.state = host.passed.value();
}

template <class Visit>
void DeltaCopies::walk(Host& host, const std::vector<std::byte*>& slots, uint64_t count,
                       const Visit& visit) {
  while (count) {
    const Piece& piece = host.pieces[host.piece];
    const uint64_t now = std::min(count, piece.words - host.within);
    visit(reinterpret_cast<uint16_t*>(slots[piece.slot] + piece.offset) + host.within, now);
    count -= now;
    host.within += now;
    if (host.within == piece.words) host.piece++, host.within = 0;
  }
}

const uint16_t* DeltaCopies::read(Host& host, const std::vector<std::byte*>& slots, size_t count,
                                  std::vector<uint16_t>& block) {
  const uint16_t* words = block.data();
  const bool together = host.pieces[host.piece].words - host.within >= count;
  uint16_t* to = block.data();
  walk(host, slots, count, [&](const uint16_t* at, uint64_t now) {
    if (together)
      words = at;
    else
      std::memcpy(to, at, now * sizeof *at);
    to += now;
  });
  return words;
}

size_t DeltaCopies::encode_next(size_t host, const std::vector<std::byte*>& slots, DeltaForm form,
                                uint8_t* out, size_t room, Workspace& work) {
  Host& of = hosts_[host];
  const size_t count = next_words(of);
  uint16_t* const copy = of.copy + of.done;
  const uint16_t* const words = read(of, slots, count, work.block);
  const bool fits = delta_block_bound(count) <= room;
  uint8_t* const to = fits ? out : work.coded.data();
  const DeltaWritten block = encode_delta(words, copy, count, form, to, work.scratch);
  if (block.bytes > room) return 0;
  if (!fits) std::memcpy(out, to, block.bytes);
  passed(of, count, block.sum);
  return block.bytes;
}

size_t DeltaCopies::decode_next(size_t host, const std::vector<std::byte*>& slots,
                                const uint8_t* in, size_t size, Workspace& work) {
  Host& of = hosts_[host];
  const size_t count = next_words(of);
  const uint16_t* words = of.copy + of.done;
  const DeltaRead block = decode_delta(in, size, of.copy + of.done, count, work.scratch);
  if (block.result != DeltaResult::good) return 0;
  walk(of, slots, count, [&](uint16_t* at, uint64_t now) {
    std::memcpy(at, words, now * sizeof *at);
    words += now;
  });
  passed(of, count, block.sum);
  return block.bytes;
}

void DeltaCopies::take(size_t host, const std::vector<std::byte*>& slots, Workspace& work) {
  Host& of = hosts_[host];
  begin(host);
  while (of.done < of.words) {
    const size_t count = next_words(of);
    uint16_t* const copy = of.copy + of.done;
    std::memcpy(copy, read(of, slots, count, work.block), count * sizeof *copy);
    passed(of, count, crc32c(copy, count * sizeof *copy));
  }
}

}  // namespace fsccl
