#include "unit/host/block_gather.h"

#include <algorithm>
#include <numeric>

namespace fsccl {
namespace {

constexpr uint64_t kExactShare = 16;  // one word of a host in so many may be sent exactly

}  // namespace

BlockGather::BlockGather(HostPool& pool, Communicator& lane, const LaneExchange& exchange,
                         const CodecSpec& spec)
    : CodedGather(pool, lane, exchange, spec, "gather with a block codec"),
      form_(spec.form()),
      sizes_(table_of(1)) {}

uint64_t BlockGather::fixed_bytes(size_t host) const {
  uint64_t bytes = 0;
  for (const LaneExchange::Range& range : ranges_)
    if (range.holder == host && covers(range.dtype))
      bytes += form_.bytes(range.bytes / dtype_size(range.dtype));
  return bytes;
}

uint64_t BlockGather::exact_bytes(size_t host) const {
  uint64_t bytes = 0;
  for (const LaneExchange::Range& range : ranges_)
    if (range.holder == host && covers(range.dtype)) bytes += range.bytes;
  return std::max(bytes / kExactShare, std::min<uint64_t>(bytes, 4 * kMostBlock));
}

Status BlockGather::place(const std::string& unit) {
  uint64_t received = 0;
  for (size_t host = 0; host < hosts(); host++) received += most_coded(host);
  figures_.bound = block_bound(form_, FSCCL_FLOAT32);
  for (const LaneExchange::Range& range : ranges_)
    if (covers(range.dtype))
      figures_.bound = std::max(figures_.bound, block_bound(form_, range.dtype));
  FSCCL_TRY(staging_->reserve(0, received));
  return allocate(std::max<uint64_t>(most_coded(self_), 1), unit);
}

void BlockGather::count_blocks(const BlocksWritten& sum) {
  staging_->count_blocks(sum);
  const std::lock_guard lock(mutex_);
  figures_.blocks += sum.blocks;
  figures_.exact_blocks += sum.exact;
  figures_.audited_blocks += sum.audited;
  figures_.beyond_bound += sum.beyond;
  figures_.max_error = std::max(figures_.max_error, static_cast<double>(sum.largest));
}

uint64_t BlockGather::encode_own() {
  auto* const out = reinterpret_cast<uint8_t*>(memory_);
  uint64_t written = 0, room = exact_bytes(self_);
  BlocksWritten sum;
  for (const LaneExchange::Range& range : ranges_) {
    if (range.holder != self_ || !covers(range.dtype)) continue;
    const size_t size = dtype_size(range.dtype);
    const std::byte* from = slots_[range.slot] + range.offset;
    for (uint64_t left = range.bytes / size; left;) {
      const size_t count = std::min<uint64_t>(left, kBlocksMost);
      const BlockAudit audit{spec_.max_relative_error, spec_.audit_every,
                             audit_phase(encodings_, sum.blocks, spec_.audit_every), room};
      const BlocksWritten made =
          encode_blocks(from, range.dtype, count, form_, audit, out + written);
      sum.blocks += made.blocks;
      sum.exact += made.exact;
      sum.audited += made.audited;
      sum.beyond += made.beyond;
      sum.largest = std::max(sum.largest, made.largest);
      if (made.overrun)
        broken_ = form_.custom->text_of(made.overrun);
      else if (made.beyond && form_.custom)
        broken_ = form_.custom->text_of(made.worst, block_bound(form_, range.dtype), range.dtype);
      if (!broken_.empty()) count_blocks(sum);
      if (!made.bytes || !broken_.empty()) return 0;
      written += made.bytes;
      room -= made.bytes - form_.chunk_bytes(count);
      from += count * size;
      left -= count;
    }
  }
  count_blocks(sum);
  encodings_++;
  return written;
}

Completion BlockGather::start(Operation& op, bool changed) {
  if (!changed && known_) return move(op);
  known_ = false;
  sizes_.mine[0] = encode_own();
  if (!broken_.empty()) return fail(op, self_, broken_);
  return tell(op, sizes_, [](Operation& told) { return of(told).choose(told); });
}

Completion BlockGather::choose(Operation& op) {
  for (size_t host = 0; host < hosts(); host++)
    if (sizes_.all[host] > most_coded(host))
      return fail(op, host, "named more coded bytes than there can be");
  known_ = true;
  return move(op);
}

Completion BlockGather::move(Operation& op) {
  ListShape shape = list_shape(ListKind::all_gather);
  sent_ = list(std::vector<bool>(hosts(), true), sizes_.all, true,
               reinterpret_cast<uint8_t*>(memory_), &shape)[self_];
  return LaneOperation::move(op, shape, [](Operation& moved) { return of(moved).decode(moved); });
}

Completion BlockGather::decode(Operation& op) {
  const uint8_t* in = staging_->received();
  for (size_t host = 0; host < hosts(); host++) {
    const uint64_t bytes = sizes_.all[host];
    const uint8_t* const from = host == self_ ? reinterpret_cast<uint8_t*>(memory_) : in;
    if (bytes && !decode_host(host, from, bytes))
      return broken_.empty() ? fail(op, host, "brought blocks that are damaged")
                             : fail(op, self_, broken_);
    in += bytes;
  }
  count({sizes_.all[self_] > 0, false, sent_});
  return Completion::over;
}

bool BlockGather::decode_host(size_t host, const uint8_t* in, uint64_t size) {
  for (const LaneExchange::Range& range : ranges_) {
    if (range.holder != host || !covers(range.dtype)) continue;
    const size_t element = dtype_size(range.dtype);
    std::byte* to = slots_[range.slot] + range.offset;
    for (uint64_t left = range.bytes / element; left;) {
      const size_t count = std::min<uint64_t>(left, kBlocksMost);
      Overrun overrun;
      const size_t read = decode_blocks(in, size, to, range.dtype, count, form_, &overrun);
      if (overrun) broken_ = form_.custom->text_of(overrun);
      if (!read) return false;
      in += read;
      size -= read;
      to += count * element;
      left -= count;
    }
  }
  return size == 0;
}

}  // namespace fsccl
