// Small collectives between hosts, in steps: in each step a rank sends the data that it has to a
// few other ranks, which forward it with their own. With radix r a rank has the input of r^k
// ranks after k steps, and sends r - 1 messages a step. In an exchange between all pairs, a rank
// sends a message to each peer. The amounts are so small that a message costs more than its bytes,
// and that all of them fit a slot.
//
// In a reduction each rank gathers the input of all ranks and reduces it itself, in rank order. The
// result therefore has the same bits as with any other plan.
#include <algorithm>

#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {
namespace {

// Returns, for each step, the number of ranks whose parts a rank has before the step.
std::vector<int> reaches(int ranks, int steps) {
  std::vector<int> made;
  const int radix = radix_of(ranks, steps);
  for (int64_t reach = 1; reach < ranks; reach *= radix) made.push_back(static_cast<int>(reach));
  return made;
}
int ticks(int ranks, int steps) {
  return std::max(1, static_cast<int>(reaches(ranks, steps).size()));
}

// Forwards a part of each rank. A rank that has a part has it in `buffer`. In slots parts lie in
// the order of ranks, and the sender's own part is the last. A receiver that already has the first
// parts from other ranks gets only the rest.
class Relay {
 public:
  // The slots come behind the plan's buffers. This rank's own part is in `buffer` before run().
  Relay(Builder& build, int steps, uint32_t buffer, fsccl_dtype_t dtype,
        std::vector<Shape::Part> parts)
      : build_(build),
        radix_(radix_of(build.ranks(), steps)),
        reaches_(reaches(build.ranks(), steps)),
        buffer_(buffer),
        dtype_(dtype),
        parts_(std::move(parts)) {
    uint64_t all = 0, longest = 0;
    for (const Shape::Part& part : parts_)
      all += part.count, longest = std::max(longest, part.count);
    for (int step = 0; step < static_cast<int>(reaches_.size()); step++)
      build_.slot("slot", std::min(all, longest * static_cast<uint64_t>(lacked(step, 1))) * size(),
                  step);
  }

  void run() {
    for (int step = 0; step < static_cast<int>(reaches_.size()); step++) {
      send(step);
      receive(step);
    }
  }

 private:
  uint64_t size() const { return dtype_size(dtype_); }
  int back(int rank, int distance) const {
    return (rank - distance + build_.ranks()) % build_.ranks();
  }
  uint32_t slot(int step) const { return buffer_ + 1 + static_cast<uint32_t>(step); }
  // Visits the parts of the last `ranks` ranks up to `rank`, the farthest first.
  template <class Use>
  void each(int rank, int ranks, Use use) const {
    for (int distance = ranks - 1; distance >= 0; distance--)
      if (const Shape::Part& part = parts_[static_cast<size_t>(back(rank, distance))]; part.count)
        use(part);
  }
  uint64_t count_of(int rank, int ranks) const {
    uint64_t count = 0;
    each(rank, ranks, [&](const Shape::Part& part) { count += part.count; });
    return count;
  }
  // Returns the same parts; parts that touch in the buffer are joined.
  std::vector<Shape::Part> runs(int rank, int ranks) const {
    std::vector<Shape::Part> made;
    each(rank, ranks, [&](const Shape::Part& part) {
      if (!made.empty() && made.back().begin + made.back().count == part.begin)
        made.back().count += part.count;
      else
        made.push_back(part);
    });
    return made;
  }
  // Returns the number of ranks whose parts the j-th partner of a step lacks. The first partner
  // lacks most.
  int lacked(int step, int j) const {
    const int64_t reach = reaches_[static_cast<size_t>(step)];
    return static_cast<int>(std::clamp<int64_t>(build_.ranks() - j * reach, 0, reach));
  }
  template <class Use>
  void partners(int step, Use use) const {
    const int reach = reaches_[static_cast<size_t>(step)];
    for (int j = 1; j < radix_ && lacked(step, j) > 0; j++) use(j * reach, lacked(step, j));
  }

  void send(int step) {
    const int self = build_.rank();
    const std::vector<Shape::Part> have = runs(self, lacked(step, 1));
    const uint64_t all = count_of(self, lacked(step, 1));
    Operand source = build_.mine(slot(step), 0);
    if (have.size() == 1) source = build_.mine(buffer_, have[0].begin * size());
    uint64_t at = 0;
    for (const Shape::Part& run : have) {
      const Operand operand = build_.mine(slot(step), at * size());
      if (have.size() > 1)
        build_.copy(operand, build_.mine(buffer_, run.begin * size()), run.count, dtype_);
      at += run.count;
    }
    partners(step, [&](int distance, int lacks) {
      const uint64_t lacking = count_of(self, lacks), skipped = (all - lacking) * size();
      Operand from = source;
      from.offset += skipped;
      build_.put(back(self, -distance), build_.mine(slot(step), skipped), from, lacking, dtype_);
    });
    partners(step, [&](int distance, int) { build_.signal_to(back(self, -distance), step); });
  }

  void receive(int step) {
    partners(step, [&](int distance, int lacks) {
      const int peer = back(build_.rank(), distance);
      build_.wait(peer, step);
      uint64_t at = count_of(peer, lacked(step, 1)) - count_of(peer, lacks);
      for (const Shape::Part& run : runs(peer, lacks)) {
        build_.copy(build_.mine(buffer_, run.begin * size()),
                    build_.at(peer, slot(step), at * size()), run.count, dtype_);
        at += run.count;
      }
    });
  }

  Builder& build_;
  const int radix_;
  const std::vector<int> reaches_;
  const uint32_t buffer_;  // the last buffer before the slots
  const fsccl_dtype_t dtype_;
  const std::vector<Shape::Part> parts_;  // by rank, in `buffer_`
};

Builder begin(const char* collective, int rank, int ranks, int steps) {
  Builder build(std::string(collective) + '_' + std::to_string(steps) + "_steps", rank, ranks,
                ticks(ranks, steps));
  build.relayed();
  return build;
}

Plan reduce_in_steps(const char* name, const ReductionShape& f, int steps) {
  Builder build = begin(name, f.rank, f.ranks, steps);
  const uint64_t size = dtype_size(f.dtype), count = f.input_bytes / size;
  build.buffer("input", Role::input, f.input_bytes);
  build.buffer("output", Role::output, f.output_bytes);
  build.buffer("scratch", Role::scratch, f.input_bytes * static_cast<uint64_t>(f.ranks));
  std::vector<Shape::Part> parts;
  for (uint64_t q = 0; q < static_cast<uint64_t>(f.ranks); q++) parts.push_back({count * q, count});
  build.copy(build.mine(2, f.input_bytes * static_cast<uint64_t>(f.rank)), build.mine(0, 0), count,
             f.dtype);
  Relay(build, steps, 2, f.dtype, std::move(parts)).run();
  const Shape::Part& own = f.parts[static_cast<size_t>(f.rank)];
  build.reduce_local(build.mine(1, 0), build.mine(2, own.begin * size), own.count, f.dtype,
                     f.input_bytes);
  return build.take();
}

}  // namespace

int radix_of(int ranks, int steps) {
  const auto enough = [&](int64_t radix) {
    int64_t reach = 1;
    for (int step = 0; step < steps && reach < ranks; step++) reach *= radix;
    return reach >= ranks;
  };
  int radix = 2;
  while (!enough(radix)) radix++;
  return radix;
}

Plan all_gather_in_steps(const Shape& shape, int steps) {
  Builder build = begin("all_gather", shape.rank, shape.ranks, steps);
  const Shape::Part own = shape.part(shape.rank);
  std::vector<Shape::Part> parts;
  for (int q = 0; q < shape.ranks; q++) parts.push_back(shape.part(q));
  build.buffer("input", Role::input, own.count * shape.size());
  build.buffer("output", Role::output, shape.whole_bytes());
  build.copy(build.mine(1, own.begin * shape.size()), build.mine(0, 0), own.count, shape.dtype);
  Relay(build, steps, 1, shape.dtype, std::move(parts)).run();
  return build.take();
}

Plan broadcast_in_steps(const Shape& shape, int steps) {
  Builder build = begin("broadcast", shape.rank, shape.ranks, steps);
  build.buffer("buffer", Role::inout, shape.count * shape.size());
  std::vector<Shape::Part> parts(static_cast<size_t>(shape.ranks), {0, 0});
  parts[static_cast<size_t>(shape.root)] = {0, shape.count};
  Relay(build, steps, 0, shape.dtype, std::move(parts)).run();
  return build.take();
}

Plan barrier_in_steps(int rank, int ranks, int steps) {
  Builder build = begin("barrier", rank, ranks, steps);
  build.buffer("nothing", Role::scratch, 0);
  Relay(build, steps, 0, FSCCL_UINT8, std::vector<Shape::Part>(static_cast<size_t>(ranks), {0, 0}))
      .run();
  return build.take();
}

Plan all_reduce_in_steps(const Shape& shape, int steps) {
  return reduce_in_steps("all_reduce", reduction_of_small_all_reduce(shape), steps);
}

Plan reduce_scatter_in_steps(const Shape& shape, int steps) {
  return reduce_in_steps("reduce_scatter", reduction_of_reduce_scatter(shape), steps);
}

}  // namespace fsccl
