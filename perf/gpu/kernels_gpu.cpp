// Compares each kernel for GPUs with a copy of as many bytes by the driver; the two take turns in
// the same run. Each kernel has a line of JSON with the ratio of both bandwidths. The bytes are
// those that must be read and written. Consecutive launches use different memory, so that no launch
// finds its bytes in the cache. Without a GPU the program prints a line that begins with SKIP.
//
//   kernels_gpu [--small] [DEVICE]     --small takes a 256th of the elements, for a quick test
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <optional>

#include "kernels/cuda/device_kernels.h"
#include "timed_launches.h"

namespace fsccl::perf {
namespace {

using cuda::CUdeviceptr;

struct Case {
  std::string name;
  std::vector<uint64_t> counts;  // elements of each piece
  fsccl_dtype_t from, to;
  int sources = 0;  // 0 for a cast
  bool accumulate = false, norm = false;
  // A cast divides each piece into so many parts. The sources of all parts are ordered by rank, and
  // then by piece.
  uint64_t ranks = 1;
  uint64_t alignment = 256;                              // alignment of the written bytes
  std::optional<cuda::BlockCodec> codec = std::nullopt;  // encodes to uint8, or decodes from it

  uint64_t elements() const {
    uint64_t sum = 0;
    for (const uint64_t count : counts) sum += count;
    return sum * ranks;
  }
  uint64_t bytes() const {
    const uint64_t read = static_cast<uint64_t>(std::max(sources, 1)) * dtype_size(from) +
                          (accumulate ? dtype_size(to) : 0);
    return elements() * (read + dtype_size(to));
  }
};

std::vector<uint64_t> divided(std::vector<uint64_t> counts, uint64_t by) {
  for (uint64_t& count : counts) count = std::max<uint64_t>(count / by, 1);
  return counts;
}

std::vector<uint64_t> llama_3_8b_layer() {
  const uint64_t square = 4096 * 4096, narrow = 1024 * 4096, wide = 14336 * 4096;
  return {square, narrow, narrow, square, wide, wide, wide, 4096, 4096};
}
// Returns parameters like those of a small convolutional network: kernels with biases between them.
std::vector<uint64_t> small_parameters() {
  std::vector<uint64_t> counts;
  for (uint64_t i = 0; i < 300; i++)
    counts.push_back(i % 2 ? uint64_t{64} << i / 2 % 4 : uint64_t{1024} << i / 2 % 7);
  return counts;
}

std::vector<Case> all_cases(uint64_t divide) {
  const auto kFp32 = FSCCL_FLOAT32, kBf16 = FSCCL_BFLOAT16;
  const auto layer = divided(llama_3_8b_layer(), divide), small = small_parameters();
  const std::vector<uint64_t> mib_64{(uint64_t{16} << 20) / divide},
      mib_512{(uint64_t{128} << 20) / divide};
  std::vector<Case> cases{
      {"cast_llama_3_8b_layer", layer, kFp32, kBf16},
      {"cast_300_small", small, kFp32, kBf16},
      {"cast_64_mib", mib_64, kFp32, kBf16},
      {"cast_512_mib", mib_512, kFp32, kBf16},
      {"widen_64_mib", mib_64, kBf16, kFp32},
      {"pack_llama_3_8b_layer", layer, kBf16, kBf16},
      {"pack_300_small", small, kBf16, kBf16},
  };
  constexpr uint64_t kRanks = 2;
  for (const auto& [name, counts] :
       {std::pair("unpack_llama_3_8b_layer", layer), {"unpack_300_small", small}})
    cases.push_back({.name = name,
                     .counts = divided(counts, kRanks),
                     .from = kBf16,
                     .to = kBf16,
                     .ranks = kRanks});
  for (const int sources : {2, 8}) {
    for (const bool norm : {false, true}) {
      const auto shard = divided(layer, static_cast<uint64_t>(sources));
      const std::string rest = fmt::format("_{}_sources{}", sources, norm ? "_norm" : "");
      cases.push_back({"reduce_llama_3_8b_layer" + rest, shard, kBf16, kFp32, sources, true, norm});
      cases.push_back({"reduce_64_mib" + rest, mib_64, kBf16, kFp32, sources, false, norm});
      cases.push_back({"reduce_300_small" + rest, divided(small, static_cast<uint64_t>(sources)),
                       kBf16, kFp32, sources, false, norm});
    }
  }
  for (const bool norm : {false, true})  // a rank's part of a unit of 64 MiB of bf16 on 8 ranks
    cases.push_back({fmt::format("reduce_part_of_64_mib_8_sources{}", norm ? "_norm" : ""),
                     {(uint64_t{4} << 20) / divide},
                     kBf16,
                     kFp32,
                     8,
                     false,
                     norm});
  // The first piece has an odd number of elements. In the second one, vectors that are read and
  // vectors that are written therefore never begin at the same element.
  cases.push_back({.name = "cast_64_mib_misaligned",
                   .counts = {1001, mib_64[0]},
                   .from = kFp32,
                   .to = kBf16,
                   .alignment = 2});
  cases.push_back({"reduce_fp32_64_mib_2_sources_norm", mib_64, kFp32, kFp32, 2, false, true});
  // These are below the size from which perf/gpu/run sets a limit.
  for (const auto& [name, codec] : {std::pair("int8", cuda::kCodecInt8),
                                    {"fp8", cuda::kCodecFp8},
                                    {"mxfp8", cuda::kCodecMxFp8}})
    for (const bool encodes : {true, false})
      cases.push_back({.name = fmt::format("{}_{}_32_mib", encodes ? "encode" : "decode", name),
                       .counts = mib_64,
                       .from = encodes ? kBf16 : FSCCL_UINT8,
                       .to = encodes ? FSCCL_UINT8 : kBf16,
                       .codec = codec});
  return cases;
}

cuda::BlockCoding coding_of(const Case& c) {
  return {*c.codec, *c.codec == cuda::kCodecMxFp8 ? 32u : 128u};
}

uint64_t rounded(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Returns the offsets of pieces, each of which has `parts` times its count; the last is the end.
std::vector<uint64_t> offsets(const Case& c, fsccl_dtype_t type, uint64_t alignment,
                              uint64_t parts = 1) {
  std::vector<uint64_t> result{0};
  for (const uint64_t count : c.counts)
    result.push_back(rounded(result.back() + parts * count * dtype_size(type), alignment));
  return result;
}

cuda::CodedPart part_of(const Case& c) {
  const auto places = offsets(c, FSCCL_BFLOAT16, 256);
  std::vector<cuda::BlockRange> ranges;
  for (size_t i = 0; i < c.counts.size(); i++)
    ranges.push_back({places[i], c.counts[i], FSCCL_BFLOAT16});
  return {coding_of(c), std::move(ranges)};
}

class Bench {
 public:
  // Launches take turns on about `footprint` bytes, which is more than the cache holds, or on the
  // bytes of one launch if those are more.
  Bench(const cuda::Device& device, const cuda::DeviceKernels& kernels, TimedLaunches& timed,
        size_t footprint)
      : device_(device), kernels_(kernels), timed_(timed), footprint_(footprint) {}

  Status run(const Case& c) {
    const auto sources = offsets(c, c.from, 256),
               destinations = offsets(c, c.to, c.alignment, c.ranks);
    const uint64_t plain =
        static_cast<uint64_t>(std::max(c.sources, 1)) * c.ranks * sources.back() +
        destinations.back();
    const uint64_t used =
        c.codec ? offsets(c, FSCCL_BFLOAT16, 256).back() + part_of(c).bytes() : plain;
    const uint64_t set = rounded(std::max(used, c.bytes()), 256),
                   sets = std::max<uint64_t>(1, footprint_ / set);
    FSCCL_ASSIGN(const auto memory, Memory::allocate(device_, sets * set + 256));
    // Copies have their own memory: a kernel would read the bytes that a copy has written as
    // numbers of another type.
    FSCCL_ASSIGN(const auto copied, Memory::allocate(device_, sets * set));
    const auto begin = [&](size_t i) { return memory->begin() + 256 + i % sets * set; };
    const auto copied_begin = [&](size_t i) { return copied->begin() + i % sets * set; };
    FSCCL_ASSIGN(const Put put,
                 c.codec     ? codes(c, memory->begin(), begin, sets)
                 : c.sources ? reduces(c, sources, destinations, memory->begin(), begin, sets)
                             : casts(c, sources, destinations, begin));
    FSCCL_ASSIGN(const auto times, timed_.beside_copies(put, copies(c, copied_begin)));
    const auto bytes = static_cast<double>(c.bytes());
    fmt::print(
        "{{\"case\": \"{}\", \"pieces\": {}, \"from\": \"{}\", \"to\": \"{}\", \"sources\": {}, "
        "\"accumulate\": {}, \"norm\": {}, "
        "\"bytes\": {}, \"us\": {:.2f}, \"gb_per_s\": {:.1f}, \"copy_us\": {:.2f}, "
        "\"copy_gb_per_s\": {:.1f}, "
        "\"ratio_to_copy\": {:.3f}}}\n",
        c.name, c.ranks * c.counts.size(), dtype_name(c.from), dtype_name(c.to),
        std::max(c.sources, 1), c.accumulate, c.norm, c.bytes(), times.us, bytes / times.us / 1e3,
        times.copy_us, bytes / times.copy_us / 1e3, times.ratio_to_copy);
    std::fflush(stdout);
    return success();
  }

 private:
  using Begin = std::function<CUdeviceptr(size_t)>;
  using Put = TimedLaunches::Put;

  // A copy reads one half of the bytes and writes the other.
  Put copies(const Case& c, const Begin& begin) {
    const size_t bytes = c.bytes() / 2 / 256 * 256;
    return [=, this](size_t i) {
      return device_.check(
          "cuMemcpyAsync",
          device_.driver().cuMemcpyAsync(begin(i), begin(i) + bytes, bytes, timed_.stream()));
    };
  }

  Result<Put> casts(const Case& c, const std::vector<uint64_t>& sources,
                    const std::vector<uint64_t>& destinations, const Begin& begin) {
    std::vector<cuda::CastRange> pieces;
    for (uint64_t rank = 0; rank < c.ranks; rank++)
      for (size_t i = 0; i < c.counts.size(); i++)
        pieces.push_back({rank * sources.back() + sources[i],
                          destinations[i] + rank * c.counts[i] * dtype_size(c.to), c.counts[i],
                          c.from, c.to});
    FSCCL_ASSIGN(const auto table, kernels_.make_casts(pieces, cuda::CastBase::both));
    const uint64_t all_sources = c.ranks * sources.back();
    return Put([=, this](size_t i) {
      return kernels_.cast(*table, begin(i), begin(i) + all_sources, timed_.stream());
    });
  }

  // Elements are zeros, which take as long as others. They lie before their codes.
  Result<Put> codes(const Case& c, CUdeviceptr states, const Begin& begin, uint64_t sets) {
    const uint64_t bytes = offsets(c, FSCCL_BFLOAT16, 256).back();
    FSCCL_ASSIGN(const auto table, kernels_.make_blocks(coding_of(c), {part_of(c)}, {0}));
    const cuda::BlockMeasure measure{.every = 256};  // as units have by default
    const cuda::Current current(device_);
    for (uint64_t set = 0; set < sets; set++) {
      FSCCL_TRY(device_.check("cuMemsetD8Async", device_.driver().cuMemsetD8Async(
                                                     begin(set), 0, bytes, timed_.stream())));
      FSCCL_TRY(kernels_.encode(*table, begin(set), begin(set) + bytes, measure, timed_.stream()));
    }
    return Put([=, this, encodes = c.to == FSCCL_UINT8](size_t i) {
      const CUdeviceptr elements = begin(i), coded = elements + bytes;
      return encodes ? kernels_.encode(*table, elements, coded, measure, timed_.stream())
                     : kernels_.decode(*table, coded, elements, states, timed_.stream());
    });
  }

  // A table holds the addresses of the destinations, so each set has its own table.
  Result<Put> reduces(const Case& c, const std::vector<uint64_t>& sources,
                      const std::vector<uint64_t>& destinations, CUdeviceptr norm,
                      const Begin& begin, uint64_t sets) {
    std::vector<std::shared_ptr<const cuda::ReduceTable>> tables;
    const uint64_t all_sources = static_cast<uint64_t>(c.sources) * sources.back();
    for (uint64_t set = 0; set < sets; set++) {
      std::vector<cuda::ReduceRange> pieces;
      for (size_t i = 0; i < c.counts.size(); i++)
        pieces.push_back(
            {sources[i], begin(set) + all_sources + destinations[i], c.counts[i], c.from, c.to});
      FSCCL_ASSIGN(const auto table, kernels_.make_reduces(pieces, c.sources));
      tables.push_back(table);
    }
    const cuda::ReduceEpilogue epilogue{.divisor = c.sources, .accumulate = c.accumulate};
    const CUdeviceptr norm_at = c.norm ? norm : 0;
    return Put([=, this, count = c.sources, of_source = sources.back()](size_t i) {
      std::vector<CUdeviceptr> bases;
      for (int s = 0; s < count; s++)
        bases.push_back(begin(i) + static_cast<uint64_t>(s) * of_source);
      return kernels_.reduce(*tables[i % sets], bases.data(), epilogue, norm_at, timed_.stream());
    });
  }

  const cuda::Device& device_;
  const cuda::DeviceKernels& kernels_;
  TimedLaunches& timed_;
  size_t footprint_;
};

Status run(int ordinal, uint64_t divide) {
  FSCCL_ASSIGN(const cuda::Device* device, cuda::Device::open(ordinal));
  FSCCL_ASSIGN(const cuda::DeviceKernels* kernels, cuda::DeviceKernels::of(*device));
  FSCCL_ASSIGN(const auto timed, TimedLaunches::make(*device, divide == 1 ? 7 : 1));
  fmt::print(
      "{{\"device\": \"{}\", \"capability\": {}, \"multiprocessors\": {}, \"timed_by\": \"{}\"}}\n",
      device->name(), device->capability(), device->multiprocessors(),
      device->driver().cuEventElapsedTime ? "events" : "clock");
  Bench bench(*device, *kernels, *timed, (512 << 20) / divide);
  for (const Case& c : all_cases(divide)) FSCCL_TRY(bench.run(c));
  return success();
}

}  // namespace
}  // namespace fsccl::perf

int main(int argc, char** argv) {
  int ordinal = 0;
  uint64_t divide = 1;
  for (int i = 1; i < argc; i++) {
    if (std::strcmp(argv[i], "--small") == 0) {
      divide = 256;
    } else {
      const char* const end = argv[i] + std::strlen(argv[i]);
      if (std::from_chars(argv[i], end, ordinal).ptr != end) {
        fmt::print(
            stderr,
            "kernels_gpu: '{}' is no number of a device; usage: kernels_gpu [--small] [DEVICE]\n",
            argv[i]);
        return 2;
      }
    }
  }
  const fsccl::Status status = fsccl::perf::run(ordinal, divide);
  if (status.ok()) return 0;
  if (status.code() == FSCCL_ERR_NOT_AVAILABLE) {
    fmt::print("SKIP {}\n", status.text());
    return 0;
  }
  fmt::print(stderr, "kernels_gpu: {}\n", status.text());
  return 1;
}
