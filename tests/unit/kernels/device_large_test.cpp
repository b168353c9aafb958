// Reduces a piece of which both the source and the destination have more than 4 GiB, and compares
// all of it with the host's result, part by part. That takes 13 GiB of a GPU. On a GPU with less
// memory, such as the stand-in, the piece has few elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/device_kernels.h"
#include "kernels/kernels.h"

namespace fsccl::cuda {
namespace {

// Numbers of elements.
constexpr size_t kLarge = (size_t{1} << 31) + (size_t{1} << 25) + 777,
                 kFew = (size_t{1} << 20) + 777;
constexpr size_t kPart = 1 << 18;
static_assert(kPart % kNormBlock == 0);
// The elements of the source repeat after so many. It is no power of two, so an offset that lost
// its high bits would find other elements.
constexpr size_t kPeriod = 300'007;

// Device memory, and copies from and to it. Its user holds a Current.
class Bytes {
 public:
  Bytes(const Device& device, size_t bytes) : device_(device) {
    expect(device.driver().cuMemAlloc(&begin_, bytes));
  }
  ~Bytes() { expect(device_.driver().cuMemFree(begin_)); }
  Bytes(const Bytes&) = delete;
  CUdeviceptr begin() const { return begin_; }
  void copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) const {
    expect(device_.driver().cuMemcpyAsync(to, from, bytes, nullptr));
    expect(device_.driver().cuStreamSynchronize(nullptr));
  }
  void write(const void* from, size_t bytes) const {
    copy(begin_, reinterpret_cast<CUdeviceptr>(from), bytes);
  }
  void read(size_t offset, void* to, size_t bytes) const {
    copy(reinterpret_cast<CUdeviceptr>(to), begin_ + offset, bytes);
  }

 private:
  void expect(CUresult code) const {
    EXPECT_TRUE(device_.check("a call of the driver", code).ok()) << code;
  }
  const Device& device_;
  CUdeviceptr begin_ = 0;
};

// Returns finite bf16 numbers of about 1.
std::vector<uint16_t> numbers(size_t count) {
  std::mt19937_64 random(244948);
  std::vector<uint16_t> found(count);
  for (uint16_t& bits : found) bits = static_cast<uint16_t>((random() & 0x83ff) | 0x3c00);
  return found;
}

// Reduces the elements [first, first + to.size()) of the source on the host, and adds their squares
// to `norm`.
void reduce_on_host(const std::vector<uint16_t>& period, size_t first, double scale,
                    std::vector<float>& to, Norm& norm) {
  std::vector<uint16_t> from(to.size());
  for (size_t i = 0; i < from.size(); i++) from[i] = period[(first + i) % kPeriod];
  const void* const source = from.data();
  Reduce args{};
  args.sources = &source, args.n = 1;
  args.from = FSCCL_BFLOAT16, args.to = FSCCL_FLOAT32, args.count = to.size();
  args.dst = to.data(), args.scale = scale, args.norm = &norm;
  EXPECT_TRUE(reduce(args));
}

TEST(DeviceKernelsLarge, APieceOfMoreThan4GiB) {
  const auto opened = Device::open(0);
  if (!opened.ok()) GTEST_SKIP() << opened.status().text();
  const Device& device = *opened.value();
  const auto kernels = DeviceKernels::of(device);
  if (!kernels.ok() && kernels.status().code() == FSCCL_ERR_NOT_AVAILABLE)
    GTEST_SKIP() << kernels.status().text();
  ASSERT_TRUE(kernels.ok()) << kernels.status().text();
  const Current current(device);
  size_t free = 0, total = 0;
  ASSERT_EQ(device.driver().cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  const size_t count = free > kLarge * 6 + (size_t{1} << 30) ? kLarge : kFew;

  const Bytes source(device, count * 2), destination(device, count * 4),
      norm_at(device, sizeof(DeviceNorm));
  const std::vector<uint16_t> period = numbers(kPeriod);
  source.write(period.data(), kPeriod * 2);
  for (size_t filled = kPeriod; filled < count; filled *= 2)
    source.copy(source.begin() + filled * 2, source.begin(), std::min(filled, count - filled) * 2);
  const ReduceEpilogue epilogue{.scale = 0.7};
  const CUdeviceptr base = source.begin();
  const auto table = kernels.value()->make_reduces(
      {{0, destination.begin(), count, FSCCL_BFLOAT16, FSCCL_FLOAT32}}, 1);
  ASSERT_TRUE(table.ok()) << table.status().text();
  ASSERT_TRUE(
      kernels.value()->reduce(*table.value(), &base, epilogue, norm_at.begin(), nullptr).ok());

  Norm expected;
  std::vector<float> want, got;
  for (size_t first = 0; first < count; first += kPart) {
    want.resize(std::min(kPart, count - first)), got.resize(want.size());
    reduce_on_host(period, first, epilogue.scale, want, expected);
    destination.read(first * 4, got.data(), got.size() * 4);
    ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * 4), 0)
        << "among the elements from " << first << " on";
  }
  DeviceNorm norm{};
  norm_at.read(0, &norm, sizeof norm);
  EXPECT_EQ(std::memcmp(&norm.sum, &expected.sum, sizeof norm.sum), 0)
      << norm.sum << ", not " << expected.sum;
  EXPECT_EQ(norm.finite, 1);
}

}  // namespace
}  // namespace fsccl::cuda
