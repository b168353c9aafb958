// A Machine runs the kernels for GPUs on the bytes of an arena. Tests then compare the whole arena,
// so that they notice a byte written outside of a piece. There are two kinds of machine: one calls
// the source of the kernels as it is compiled for the CPU, and the other uses DeviceKernels over
// the driver that is found, which is that of a GPU or the stand-in.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/device_kernels.h"

namespace fsccl::cuda {

// Bytes from a multiple of 256 on, which are given out one after the other.
class Arena {
 public:
  explicit Arena(size_t bytes) : lines_(bytes / sizeof(Line) + 1, Line{}) {}
  // Returns the offset of `bytes` bytes, `misalignment` bytes past a multiple of 64. There is a gap
  // behind the bytes.
  size_t take(size_t bytes, size_t misalignment) {
    const size_t begin = used_ + misalignment;
    used_ = (begin + bytes + 127) / 64 * 64;
    if (used_ > size()) throw std::length_error("the arena of a test is too small");
    return begin;
  }
  uint8_t* data() { return lines_[0].bytes; }
  const uint8_t* data() const { return lines_[0].bytes; }
  size_t size() const { return lines_.size() * sizeof(Line); }
  bool operator==(const Arena& other) const {
    return std::memcmp(data(), other.data(), used_) == 0;
  }
  size_t used() const { return used_; }

 private:
  struct alignas(256) Line {
    uint8_t bytes[256];
  };
  std::vector<Line> lines_;
  size_t used_ = 0;
};

// In these calls, the addresses of pieces and the bases are offsets in the arena.
struct CastCall {
  std::vector<CastRange> pieces;
  CastBase base = CastBase::both;
  size_t source_base = 0, destination_base = 0;
};
struct CodedCall {
  BlockCoding coding;
  std::vector<CodedPart> parts;
  std::vector<uint64_t> begins;  // where the parts begin
  size_t states = 0;             // for decode: a uint32_t for each part
  BlockMeasure measure;          // for encode; `figures` is an offset, 0: none
};
struct SumsCall {
  BlockCoding coding;
  std::vector<std::vector<BlockRange>> parts;
  std::vector<uint64_t> begins;  // where the parts begin
  size_t feedback = 0;           // for encode_sums; 0: none
  size_t states = 0;             // for decode_sums: a uint32_t for each part
};
struct ReduceCall {
  std::vector<ReduceRange> pieces;
  std::vector<size_t> bases;
  ReduceEpilogue epilogue;
  int times = 1;
};

class Machine {
 public:
  virtual ~Machine() = default;
  virtual void cast(Arena& arena, const CastCall& call) = 0;
  virtual void reduce(Arena& arena, const ReduceCall& call, DeviceNorm* norm) = 0;
  virtual void divide(Arena& arena, size_t at, uint64_t count, fsccl_dtype_t dtype,
                      int64_t divisor) = 0;
  virtual void encode(Arena& arena, const CodedCall& call) = 0;
  virtual void decode(Arena& arena, const CodedCall& call) = 0;
  virtual void encode_sums(Arena& arena, const SumsCall& call) = 0;
  virtual void decode_sums(Arena& arena, const SumsCall& call) = 0;
  virtual uint32_t blocks() const = 0;  // the most blocks of a reduce with norm
};

// `way` is "emulated" or "driver". For the second, returns null and sets *why if there is no device
// or the library has no kernels.
std::unique_ptr<Machine> make_machine(const std::string& way, std::string* why);

// Tests that run on both machines.
class OnMachine : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string why;
    machine_ = make_machine(GetParam(), &why);
    if (!machine_) GTEST_SKIP() << why;
  }
  std::unique_ptr<Machine> machine_;
};

}  // namespace fsccl::cuda
