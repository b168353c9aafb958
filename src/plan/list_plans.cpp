#include "plan/list_plans.h"

#include <algorithm>
#include <numeric>

#include "plan/build.h"
#include "plan/turn.h"

namespace fsccl {
namespace {

uint32_t send_buffer(size_t t) { return static_cast<uint32_t>(2 * t); }
uint32_t recv_buffer(size_t t) { return static_cast<uint32_t>(2 * t + 1); }

const char* name_of(ListKind kind) {
  return kind == ListKind::all_gather       ? "all_gather_list"
         : kind == ListKind::reduce_scatter ? "reduce_scatter_list"
                                            : "broadcast_list";
}

// The tensors whose buffers a plan has: `count` of them, from `first` on.
struct Window {
  size_t first = 0, count = 0;
  uint32_t send(size_t t) const { return send_buffer(t - first); }
  uint32_t recv(size_t t) const { return recv_buffer(t - first); }
  uint32_t slot(int tick) const {
    return static_cast<uint32_t>(2 * count) + static_cast<uint32_t>(tick);
  }
};

Window all_tensors(const ListShape& shape) { return {0, shape.tensors.size()}; }

void add_buffers(Builder& build, const ListShape& shape, const Window& window,
                 bool address_exchanged) {
  for (size_t t = window.first; t < window.first + window.count; t++) {
    build.buffer("send " + std::to_string(t), Role::input, shape.send_bytes(t)).address_exchanged =
        address_exchanged && shape.kind != ListKind::broadcast;
    build
        .buffer("recv " + std::to_string(t),
                shape.kind == ListKind::broadcast ? Role::inout : Role::output, shape.recv_bytes(t))
        .address_exchanged = address_exchanged && shape.kind == ListKind::broadcast;
  }
}

uint64_t size_of(const ListShape& shape, size_t t) { return dtype_size(shape.tensors[t].dtype); }
uint64_t received_size(const ListShape& shape, size_t t) {
  return dtype_size(shape.tensors[t].received);
}

// Adds this rank's copies of a broadcast. The bytes have `ranks` equal shares. If the root pushes,
// it pushes the last share to every other rank, and each of these pulls the other shares from the
// root. Otherwise they pull all shares.
void broadcast_share(Builder& build, const ListShape& shape, bool pushes) {
  uint64_t bytes = 0, at = 0;
  for (size_t t = 0; t < shape.tensors.size(); t++) bytes += shape.recv_bytes(t);
  const uint64_t pulled = pushes ? bytes - bytes / static_cast<uint64_t>(shape.ranks) : bytes;
  for (size_t t = 0; t < shape.tensors.size(); t++) {
    const uint64_t size = size_of(shape, t), count = shape.whole(t), line = 64 / size;
    const uint64_t begin = at, end = at + count * size;
    at = end;
    // The tensor in which the last share begins is cut at a cache line.
    const uint64_t cut = pulled <= begin ? 0
                         : pulled >= end
                             ? count
                             : std::min(count, ((pulled - begin) / size + line - 1) / line * line);
    const Operand tail = {recv_buffer(t), 0, cut * size};
    if (shape.rank == shape.root) {
      for (int i = 1; i < shape.ranks; i++)
        build.copy(build.at(build.peer(i), tail.buffer, tail.offset),
                   build.mine(tail.buffer, tail.offset), count - cut, shape.tensors[t].dtype);
    } else {
      build.copy(build.mine(tail.buffer, 0), build.at(shape.root, tail.buffer, 0), cut,
                 shape.tensors[t].dtype);
    }
  }
}

void own_parts(Builder& build, const ListShape& shape) {
  for (size_t t = 0; t < shape.tensors.size(); t++)
    build.copy(build.mine(recv_buffer(t), shape.before(t, shape.rank) * size_of(shape, t)),
               build.mine(send_buffer(t), 0), shape.part(t, shape.rank), shape.tensors[t].dtype);
}

using Buckets = ListBuckets::List;

// Cuts rank q's parts into buckets of `bytes`. Each piece begins at a cache line.
Buckets cut(const ListShape& shape, int q, uint64_t bytes) {
  Buckets buckets;
  uint64_t used = bytes;
  for (size_t t = 0; t < shape.tensors.size(); t++) {
    const uint64_t size = size_of(shape, t), count = shape.part(t, q);
    for (uint64_t begin = 0; begin < count;) {
      if (used == bytes) buckets.emplace_back(), used = 0;
      const uint64_t now = std::min(count - begin, (bytes - used) / size);
      buckets.back().push_back({t, begin, now, used});
      begin += now;
      used = std::min(bytes, used + (now * size + 63) / 64 * 64);
    }
  }
  return buckets;
}

constexpr uint64_t kOverlap = 4;

const std::vector<ListRange>& bucket_of(const Buckets& buckets, size_t k) {
  static const std::vector<ListRange> none;
  return k < buckets.size() ? buckets[k] : none;
}

// Brings a bucket's pieces to this rank's slot, from `at` on, where `readers` read them. If slots
// are mirrored, several pieces are packed in the own slot and sent with one put, which costs less
// than a put of each piece. A single piece is put straight from its buffer.
template <class SourceOf>
void fill(Builder& build, const ListShape& shape, const std::vector<ListRange>& pieces, Operand at,
          SourceOf source, const std::vector<int>& readers) {
  if (pieces.empty() || readers.empty()) return;
  const bool packs = !shape.mirrored || pieces.size() > 1;
  if (packs)
    for (const ListRange& piece : pieces)
      build.copy({at.buffer, at.rank, at.offset + piece.offset}, source(piece), piece.count,
                 shape.tensors[piece.tensor].dtype);
  if (!shape.mirrored) return;
  const ListRange& last = pieces.back();
  const uint64_t bytes = last.offset + last.count * size_of(shape, last.tensor);
  for (const int q : readers) build.put(q, at, packs ? at : source(last), bytes, FSCCL_UINT8);
}

// Moves the buckets k to k + ticks - 1. All of them are filled before the first one is emptied
// (move_slots.cpp).
Plan move_list_slots(const ListShape& shape, const std::vector<Buckets>& parts,
                     const Window& window, size_t k, int ticks, uint64_t chunk) {
  const bool broadcast = shape.kind == ListKind::broadcast;
  Builder build(std::string(name_of(shape.kind)) + "_slots", shape.rank, shape.ranks, ticks);
  build.mirrored(shape.mirrored);
  if (!broadcast) build.two_way();
  add_buffers(build, shape, window, false);
  for (int tick = 0; tick < ticks; tick++) build.slot("slot", chunk, tick);
  const auto bucket = [&](int q, int tick) -> const std::vector<ListRange>& {
    return bucket_of(parts[static_cast<size_t>(q)], k + static_cast<size_t>(tick));
  };
  const auto source = [&](const ListRange& piece) {
    return build.mine(broadcast ? window.recv(piece.tensor) : window.send(piece.tensor),
                      piece.begin * size_of(shape, piece.tensor));
  };
  std::vector<int> readers;
  for (int i = 1; i < shape.ranks && (!broadcast || shape.rank == shape.root); i++)
    readers.push_back(build.peer(i));
  for (int tick = 0; tick < ticks; tick++) {
    fill(build, shape, bucket(shape.rank, tick), build.mine(window.slot(tick), 0), source, readers);
    build.signal(tick);
  }
  if (!broadcast && k == 0) own_parts(build, shape);
  for (int tick = 0; tick < ticks; tick++) {
    for (int i = 1; i < shape.ranks; i++) {
      const int q = build.peer(i);
      if ((broadcast && q != shape.root) || (tick > 0 && bucket(q, tick).empty())) continue;
      build.wait(q, tick);
      for (const ListRange& piece : bucket(q, tick)) {
        const uint64_t before = broadcast ? 0 : shape.before(piece.tensor, q);
        build.copy(build.mine(window.recv(piece.tensor),
                              (before + piece.begin) * size_of(shape, piece.tensor)),
                   build.at(q, window.slot(tick), piece.offset), piece.count,
                   shape.tensors[piece.tensor].dtype);
      }
    }
  }
  if (broadcast && (shape.rank == shape.root ? shape.ranks > 1 : shape.ranks > 2))
    build.completes_early();
  return build.take();
}

Plan reduce_list_slots(const ListShape& shape, const std::vector<Buckets>& parts,
                       const Window& window, size_t k, uint64_t slot_bytes, uint64_t chunk) {
  Builder build("reduce_scatter_list_slots", shape.rank, shape.ranks, 1);
  build.mirrored(shape.mirrored);
  build.two_way();
  add_buffers(build, shape, window, false);
  build.slot("slot", slot_bytes, 0);
  const uint32_t slot = window.slot(0);
  const auto place = [&](int q) {
    return place_of_piece(pieces_for_readers(shape.ranks), chunk, q);
  };
  const auto source = [&](const ListRange& piece, int q) {
    return build.mine(window.send(piece.tensor),
                      (shape.before(piece.tensor, q) + piece.begin) * size_of(shape, piece.tensor));
  };
  for (int i = 1; i < shape.ranks; i++) {
    const int q = build.peer(i);
    const auto its = [&](const ListRange& piece) { return source(piece, q); };
    fill(build, shape, bucket_of(parts[static_cast<size_t>(q)], k), build.mine(slot, place(q)), its,
         {q});
  }
  build.signal(0);
  build.wait_all(0);
  for (const ListRange& piece : bucket_of(parts[static_cast<size_t>(shape.rank)], k)) {
    const auto& [dtype, counts, received] = shape.tensors[piece.tensor];
    build.reduce(
        build.mine(window.recv(piece.tensor), piece.begin * received_size(shape, piece.tensor)),
        received, build.mine(slot, place(shape.rank) + piece.offset), dtype, piece.count,
        source(piece, shape.rank));
  }
  return build.take();
}

}  // namespace

uint64_t ListShape::before(size_t t, int q) const {
  return kind == ListKind::broadcast ? 0
                                     : std::accumulate(tensors[t].counts.begin(),
                                                       tensors[t].counts.begin() + q, uint64_t{0});
}
uint64_t ListShape::part(size_t t, int q) const {
  return tensors[t].counts[kind == ListKind::broadcast ? 0 : static_cast<size_t>(q)];
}
uint64_t ListShape::whole(size_t t) const {
  return std::accumulate(tensors[t].counts.begin(), tensors[t].counts.end(), uint64_t{0});
}
uint64_t ListShape::send_bytes(size_t t) const {
  const uint64_t count = kind == ListKind::broadcast    ? 0
                         : kind == ListKind::all_gather ? part(t, rank)
                                                        : whole(t);
  return count * dtype_size(tensors[t].dtype);
}
uint64_t ListShape::recv_bytes(size_t t) const {
  return (kind == ListKind::reduce_scatter ? part(t, rank) : whole(t)) *
         dtype_size(tensors[t].received);
}

namespace {

// Moves all bytes between the buffers, in one copy.
Plan list_in_one_copy(const ListShape& shape, const char* name, bool pushes) {
  Builder build(std::string(name_of(shape.kind)) + name, shape.rank, shape.ranks,
                shape.ranks > 1 ? 2 : 1);
  add_buffers(build, shape, all_tensors(shape), true);
  build.signal(0);
  if (shape.kind == ListKind::all_gather) own_parts(build, shape);
  build.wait_all(0);
  if (shape.kind == ListKind::broadcast) broadcast_share(build, shape, pushes);
  for (size_t t = 0; t < shape.tensors.size(); t++) {
    const uint64_t size = size_of(shape, t);
    const fsccl_dtype_t dtype = shape.tensors[t].dtype;
    if (shape.kind == ListKind::reduce_scatter)
      build.reduce(build.mine(recv_buffer(t), 0), shape.tensors[t].received,
                   build.mine(send_buffer(t), shape.before(t, shape.rank) * size), dtype,
                   shape.part(t, shape.rank));
    for (int i = 1; i < shape.ranks && shape.kind == ListKind::all_gather; i++) {
      const int q = build.peer(i);
      build.copy(build.mine(recv_buffer(t), shape.before(t, q) * size),
                 build.at(q, send_buffer(t), 0), shape.part(t, q), dtype);
    }
  }
  if (shape.ranks == 1) return build.take();
  build.signal(1);
  build.wait_all(1);
  return build.take();
}

}  // namespace

Plan list_direct(const ListShape& shape) { return list_in_one_copy(shape, "_direct", true); }
Plan list_read(const ListShape& shape, bool pushes) {
  return list_in_one_copy(shape, "_read", pushes);
}

ListBuckets::ListBuckets(ListShape shape, uint64_t slot_bytes)
    // The root of a broadcast also packs pieces, so its buckets have the same limit.
    : shape_(std::move(shape)),
      slot_bytes_(packed_bytes(slot_bytes, shape_.mirrored, shape_.ranks)) {
  const bool reduces = shape_.kind == ListKind::reduce_scatter,
             broadcast = shape_.kind == ListKind::broadcast;
  // The buckets of a broadcast are small, so that its receivers copy one while the root fills the
  // next. If slots are mirrored they are large, because each bucket costs a message.
  const bool overlaps = broadcast && !shape_.mirrored;
  const uint64_t pieces = reduces ? pieces_for_readers(shape_.ranks) : overlaps ? kOverlap : 1;
  chunk_ = slot_bytes_ / pieces / 64 * 64;
  for (int q = 0; q < shape_.ranks; q++) {
    parts_.push_back(broadcast && q != shape_.root ? List() : cut(shape_, q, chunk_));
    buckets_ = std::max(buckets_, parts_.back().size());
  }
  if (shape_.kind == ListKind::all_gather && shape_.ranks > 1) together_ = kMaxTicks;
}

size_t ListBuckets::size() const { return (buckets_ + together_ - 1) / together_; }

int ListBuckets::ticks(size_t index) const {
  return static_cast<int>(std::min(together_, buckets_ - index * together_));
}

Plan ListBuckets::make(size_t index, size_t first, size_t count) const {
  const Window window{first, count};
  const size_t k = index * together_;
  return shape_.kind == ListKind::reduce_scatter
             ? reduce_list_slots(shape_, parts_, window, k, slot_bytes_, chunk_)
             : move_list_slots(shape_, parts_, window, k, ticks(index), chunk_);
}

Plan ListBuckets::plan(size_t index) const { return make(index, 0, shape_.tensors.size()); }

ListBucket ListBuckets::bucket(size_t index) const {
  // The first plan of an all-gather also moves this rank's own parts.
  size_t first = shape_.tensors.size(), end = 0;
  if (index == 0 && shape_.kind == ListKind::all_gather) first = 0, end = shape_.tensors.size();
  const size_t k = index * together_;
  for (const List& of_rank : parts_)
    for (size_t at = k; at < k + static_cast<size_t>(ticks(index)); at++)
      for (const ListRange& piece : bucket_of(of_rank, at))
        first = std::min(first, piece.tensor), end = std::max(end, piece.tensor + 1);
  if (first >= end) first = end = 0;  // no tensor has elements
  return {make(index, first, end - first), first};
}

uint64_t ListBuckets::memory() const {
  uint64_t ranges = 0;
  for (const List& of_rank : parts_)
    for (const std::vector<ListRange>& bucket : of_rank) ranges += bucket.size();
  // A range takes two steps, and a bucket some more, with few buffers.
  return ranges * (sizeof(ListRange) + 2 * sizeof(Step)) + size() * 1024;
}

std::vector<Plan> list_slots(const ListShape& shape, uint64_t slot_bytes) {
  const ListBuckets buckets(shape, slot_bytes);
  std::vector<Plan> plans;
  for (size_t k = 0; k < buckets.size(); k++) plans.push_back(buckets.plan(k));
  return plans;
}

// The ranks do not wait for each other between two plans, so each plan after the first takes the
// time in which the busier rank works.
double list_slots_ns(const std::array<ListShape, 2>& shapes, uint64_t slot_bytes,
                     const Costs& costs) {
  constexpr size_t kPriced = 64;  // the plans behind these are like them
  const ListBuckets first(shapes[0], slot_bytes), second(shapes[1], slot_bytes);
  double ns = 0, later_ns = 0;
  const size_t priced = std::min(first.size(), kPriced);
  for (size_t k = 0; k < priced; k++) {
    const Price one = price({first.bucket(k).plan, second.bucket(k).plan}, costs, false);
    ns += k == 0 ? one.ns : one.busy;
    later_ns += k == 0 ? 0 : one.busy;
  }
  if (priced < first.size())
    ns += later_ns / static_cast<double>(priced - 1) * static_cast<double>(first.size() - priced);
  return ns;
}

}  // namespace fsccl
