// Tests the handler of XLA's typed FFI for GPUs, called as XLA calls it. Its operations are on the
// stream that XLA passes, behind the stream's earlier work, and later work on the stream sees their
// results. Ranks are threads, each with a GPU of the stand-in driver.
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "device_memory.h"
#include "support.h"
#include "xla_ffi.h"

extern "C" {
xla_ffi::Error* fsccl_jax_device_collective(xla_ffi::Call* call);
int fsccl_jax_join(const fsccl_unique_id_t* id, int64_t group, int ranks, int count,
                   const int* ordinals, const int* numbers, const char* name, char* why,
                   size_t capacity);
int fsccl_jax_leave(int64_t group, char* why, size_t capacity);
}

namespace xla_ffi {
// XLA's own types, to which the handler has only pointers.
struct Error {
  int code;
  std::string text;
};
struct Context {
  int device;
  void* stream;
};
}  // namespace xla_ffi

namespace fsccl::testing {
namespace {

enum Kind { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kAllToAll };
constexpr int kUint32 = 8, kFloat = 11, kExecute = 3, kStringType = 4;

xla_ffi::Error* make_error(xla_ffi::ErrorCreate* args) {
  return new xla_ffi::Error{args->code, args->message};
}
xla_ffi::Error* stream_of(xla_ffi::StreamGet* args) {
  args->stream = args->context->stream;
  return nullptr;
}
xla_ffi::Error* device_of(xla_ffi::DeviceOrdinal* args) {
  args->ordinal = args->context->device;
  return nullptr;
}

xla_ffi::Api api() {
  xla_ffi::Api made{};
  made.struct_size = sizeof made;
  made.error_create = make_error;
  made.stream_get = stream_of;
  made.device_ordinal_get = device_of;
  return made;
}

// A call of XLA with one array of floats. `counts` are the elements of each rank's part.
struct FakeCall {
  FakeCall(Kind which, int64_t group_number, std::vector<int64_t> parts, int64_t root_rank = 0)
      : kind(which), group(group_number), root(root_rank), counts(std::move(parts)) {}

  // Makes the call, and returns the error's text, or "" if there is no error.
  std::string run(int device, void* stream, const DeviceBlock& from, size_t elements,
                  const DeviceBlock& to) {
    const xla_ffi::Api table = api();
    xla_ffi::Context context{device, stream};
    int64_t dims = static_cast<int64_t>(elements), two = 2;
    xla_ffi::Buffer in{sizeof in, nullptr, kFloat, from.get(), 1, &dims};
    xla_ffi::Buffer out{sizeof out, nullptr, kFloat, to.get(), 1, &dims};
    // The place and the token lie in the device's memory, which the host may not read.
    xla_ffi::Buffer place{sizeof place, nullptr, kUint32, nullptr, 0, nullptr};
    xla_ffi::Buffer token{sizeof token, nullptr, kFloat, nullptr, 1, &two};
    xla_ffi::Buffer *arguments[] = {&in, &place, &token}, *results[] = {&out, &token};
    xla_ffi::Scalar scalars[] = {{0, &kind_value}, {0, &group}, {0, &root}};
    kind_value = kind;
    xla_ffi::Array array{0, counts.size(), counts.data()};
    const char* const words[] = {"kind", "group", "root", "counts", "site"};
    std::vector<xla_ffi::Span> spans;
    for (const char* word : words) spans.push_back({word, std::strlen(word)});
    xla_ffi::Span* names[] = {&spans[0], &spans[1], &spans[2], &spans[3], &spans[4]};
    xla_ffi::Span site{"a site", 6};
    void* values[] = {&scalars[0], &scalars[1], &scalars[2], &array, &site};
    int types[] = {3, 3, 3, 1, kStringType};
    xla_ffi::Call call{};
    call.struct_size = sizeof call;
    call.api = &table;
    call.context = &context;
    call.stage = kExecute;
    call.arguments = {sizeof call.arguments, nullptr, 3, nullptr, arguments};
    call.results = {sizeof call.results, nullptr, 2, nullptr, results};
    call.attributes = {sizeof call.attributes, nullptr, 5, types, names, values};
    const std::unique_ptr<xla_ffi::Error> error(fsccl_jax_device_collective(&call));
    return error ? error->text : "";
  }

  Kind kind;
  int64_t kind_value = 0, group, root;
  std::vector<int64_t> counts;
};

constexpr int kRanks = 2;
constexpr size_t kPart = 3000;

// Runs `body` in a thread for each rank of a new group.
void on_devices(int64_t group, const std::function<void(int rank, const cuda::Device&)>& body) {
  std::string why;
  if (!device_of_rank(0, &why)) GTEST_SKIP() << why;
  fsccl_unique_id_t id;
  ASSERT_OK(fsccl_unique_id_create(&id));
  const int ordinals[] = {0, 1}, numbers[] = {0, 1};
  char text[1024] = "";
  ASSERT_EQ(
      fsccl_jax_join(&id, group, kRanks, kRanks, ordinals, numbers, "gpus", text, sizeof text), 0)
      << text;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([rank, &body] {
      std::string reason;
      body(rank, *device_of_rank(rank, &reason));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fsccl_jax_leave(group, text, sizeof text), 0) << text;
}

float input(int rank, size_t i) {
  return static_cast<float>((i * 7 + 13) % 101 + 1000 * static_cast<size_t>(rank));
}

// Makes the call on this rank, whose input has `elements`, and returns the results.
std::vector<float> carry_out(FakeCall call, int rank, const cuda::Device& gpu, size_t elements,
                             size_t results) {
  const DeviceStream stream(gpu);
  const DeviceBlock from(gpu, elements * 4), to(gpu, results * 4);
  std::vector<float> values(elements), result(results, -1.0f);
  for (size_t i = 0; i < elements; ++i) values[i] = input(rank, i);
  from.put(values.data());
  // A broadcast's result lies in the memory of its operand, which XLA calls an alias.
  const bool in_place = call.kind == kBroadcast;
  EXPECT_EQ(call.run(rank, stream.get(), from, elements, in_place ? from : to), "");
  stream.synchronize();
  (in_place ? from : to).take(result.data());
  return result;
}

TEST(OnStreams, EveryCollectiveGivesWhatItGivesOnProcessors) {
  on_devices(1, [](int rank, const cuda::Device& gpu) {
    const auto part = static_cast<int64_t>(kPart);
    const std::vector<int64_t> even{part, part}, whole{2 * part, 2 * part};
    const auto equal = [](const std::vector<float>& got, auto want) {
      for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want(i)) << i;
    };
    equal(carry_out({kAllGather, 1, even}, rank, gpu, kPart, 2 * kPart),
          [](size_t i) { return input(static_cast<int>(i / kPart), i % kPart); });
    equal(carry_out({kReduceScatter, 1, even}, rank, gpu, 2 * kPart, kPart), [&](size_t i) {
      const size_t at = i + static_cast<size_t>(rank) * kPart;
      return input(0, at) + input(1, at);
    });
    equal(carry_out({kAllReduce, 1, whole}, rank, gpu, 2 * kPart, 2 * kPart),
          [](size_t i) { return input(0, i) + input(1, i); });
    equal(carry_out({kBroadcast, 1, whole, 1}, rank, gpu, 2 * kPart, 2 * kPart),
          [](size_t i) { return input(1, i); });
    equal(carry_out({kAllToAll, 1, even}, rank, gpu, 2 * kPart, 2 * kPart), [&](size_t i) {
      return input(static_cast<int>(i / kPart), i % kPart + static_cast<size_t>(rank) * kPart);
    });
  });
}

TEST(OnStreams, LargeAndUnevenPartsGoByThemselves) {
  on_devices(2, [](int rank, const cuda::Device& gpu) {
    constexpr size_t kLong = 200'000, kShort = 70'000;
    const std::vector<float> got =
        carry_out({kAllGather, 2, {kLong, kShort}}, rank, gpu, kLong, kLong + kShort);
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], i < kLong ? input(0, i) : input(1, i - kLong)) << i;
  });
}

TEST(OnStreams, WhatIsNoGroupIsAnError) {
  on_devices(3, [](int rank, const cuda::Device& gpu) {
    const DeviceStream stream(gpu);
    const DeviceBlock block(gpu, 8);
    FakeCall call{kAllReduce, 99, {2, 2}};
    EXPECT_NE(call.run(rank, stream.get(), block, 2, block).find("is in no group"),
              std::string::npos);
    FakeCall other{kAllReduce, 3, {2, 2, 2}};
    EXPECT_NE(other.run(rank, stream.get(), block, 2, block)
                  .find("the call is for 3 ranks, and the group has 2"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace fsccl::testing
