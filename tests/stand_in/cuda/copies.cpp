// The driver's functions for copies, fills and values in a stream. They check pointers twice: when
// the work is put on the stream, as the driver does, and when it is done, because memory may be
// gone by then. That breaks the device, as an illegal access breaks a GPU.
//
// If a copy uses ordinary host memory (neither of a device nor registered), the call waits, except
// for a small source, which is read at once because the driver stages it. So a caller that relies
// on copies of such memory being asynchronous blocks here, as it may with the driver.
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

#include "memory.h"
#include "stream.h"

using namespace fsccl::stand_in;

namespace {

constexpr uint64_t kStaged = 64 << 10;

struct Copy {
  DevicePointer destination, source;
  size_t bytes;
};

void* pointer(DevicePointer address) { return reinterpret_cast<void*>(address); }

std::vector<Range> ranges(const std::vector<Copy>& copies) {
  std::vector<Range> all;
  for (const Copy& copy : copies)
    all.insert(all.end(), {{copy.destination, copy.bytes}, {copy.source, copy.bytes}});
  return all;
}

Code run(const Copy& copy, const Device& device) {
  return memory().touch(device, copy.destination, copy.source, copy.bytes, [&] {
    std::memmove(pointer(copy.destination), pointer(copy.source), copy.bytes);
  });
}

// Looks both pointers up, and refuses the call if one is foreign. Sets *waits if the call must
// wait, and *host_source if the source must be read at once.
Code look(const char* function, const Copy& copy, const Device& device, bool* waits,
          bool* host_source) {
  const Kind to = memory().kind(copy.destination, copy.bytes, device, true),
             from = memory().kind(copy.source, copy.bytes, device, false);
  if (to == Kind::foreign || from == Kind::foreign)
    return refuse(function, kInvalidValue,
                  "%zu bytes from %llx to %llx: the %s is not memory that the device may use",
                  copy.bytes, copy.source, copy.destination,
                  to == Kind::foreign ? "destination" : "source");
  *host_source = from == Kind::host;
  *waits = to == Kind::host || (*host_source && copy.bytes > kStaged);
  return kSuccess;
}

Code copy_batch(const char* function, const std::vector<Copy>& copies, StreamHandle handle) {
  const auto stream = stream_of(handle);
  if (!stream || stream == stream->device.null_stream)
    return refuse(function, kInvalidValue, "a batch wants a stream that is not the default one");
  Device& device = stream->device;
  bool any_waits = false;
  for (const Copy& copy : copies) {
    bool waits = false, host_source = false;
    if (const Code code = look(function, copy, device, &waits, &host_source)) return code;
    any_waits = any_waits || waits || host_source;
  }
  auto shuffled = copies;
  static std::atomic<unsigned> batches{0};
  std::shuffle(shuffled.begin(), shuffled.end(), std::minstd_rand(++batches));
  const auto work = [shuffled = std::move(shuffled), &device] {
    for (const Copy& copy : shuffled)
      if (const Code code = run(copy, device)) return code;
    return Code{kSuccess};
  };
  const Ticket put = submit(stream, {}, work, ranges(copies));
  if (any_waits) occupy(function, put);
  return kSuccess;
}

// Returns true if no copy of a batch writes bytes that another one reads or writes.
bool independent(const std::vector<Copy>& copies) {
  std::vector<std::pair<uint64_t, uint64_t>> written;
  for (const Copy& copy : copies)
    written.emplace_back(copy.destination, copy.destination + copy.bytes);
  std::sort(written.begin(), written.end());
  for (size_t i = 1; i < written.size(); i++)
    if (written[i].first < written[i - 1].second) return false;
  return std::none_of(copies.begin(), copies.end(), [&](const Copy& copy) {
    const auto after = std::lower_bound(written.begin(), written.end(),
                                        std::pair{uint64_t{copy.source} + copy.bytes, uint64_t{0}});
    return after != written.begin() && std::prev(after)->second > copy.source;
  });
}

Code checked_batch(const char* function, DevicePointer* destinations, DevicePointer* sources,
                   size_t* sizes, size_t count, CopyAttributes* attributes, size_t* begins,
                   size_t attribute_count, StreamHandle stream) {
  if (!destinations || !sources || !sizes || !count || !attributes || !begins || !attribute_count ||
      attribute_count > count)
    return refuse(function, kInvalidValue, "%zu copies with %zu attributes", count,
                  attribute_count);
  for (size_t i = 0; i < attribute_count; i++)
    if ((i ? begins[i] <= begins[i - 1] : begins[0] != 0) || begins[i] >= count ||
        attributes[i].source_order < 1 || attributes[i].source_order > 3 || attributes[i].flags > 1)
      return refuse(function, kInvalidValue, "attributes number %zu", i);
  std::vector<Copy> copies;
  for (size_t i = 0; i < count; i++) copies.push_back({destinations[i], sources[i], sizes[i]});
  if (!independent(copies))
    return refuse(function, kInvalidValue, "a copy writes what another of the batch touches");
  return copy_batch(function, copies, stream);
}

bool is_wait(const MemoryOperation& operation) {
  return operation.operation == 1 || operation.operation == 4;
}
bool is_wide(const MemoryOperation& operation) { return operation.operation >= 4; }

template <class Value, class Signed>
bool met(const MemoryOperation& operation) {
  const Value there =
      __atomic_load_n(static_cast<Value*>(pointer(operation.address)), __ATOMIC_ACQUIRE);
  const auto value = static_cast<Value>(operation.value);
  if (operation.flags == 0) return static_cast<Signed>(static_cast<Value>(there - value)) >= 0;
  return operation.flags == 1 ? there == value : (there & value) != 0;
}

// Another process may write the value, so it is looked at again and again, and less often the
// longer it takes.
Code wait_for(const MemoryOperation& operation, Device& device, Stream& stream) {
  const uint64_t bytes = is_wide(operation) ? 8 : 4;
  struct Waits {
    explicit Waits(Stream& in) : stream(in) { stream.waits_for_value = true; }
    ~Waits() { stream.waits_for_value = false; }
    Stream& stream;
  } const waits(stream);
  for (long round = 0; device.broken == kSuccess; round++) {
    bool over = false;
    const auto look = [&] {
      over = is_wide(operation) ? met<uint64_t, int64_t>(operation)
                                : met<uint32_t, int32_t>(operation);
    };
    if (const Code code = memory().touch(device, 0, operation.address, bytes, look)) return code;
    if (over) return kSuccess;
    const timespec pause{0, std::min(round, 100L) * 10'000};
    if (round < 20)
      sched_yield();
    else
      nanosleep(&pause, nullptr);
  }
  return kSuccess;
}

Code run(const MemoryOperation& operation, Device& device, Stream& stream) {
  if (is_wait(operation)) return wait_for(operation, device, stream);
  return memory().touch(device, operation.address, 0, is_wide(operation) ? 8 : 4, [&] {
    if (is_wide(operation))
      __atomic_store_n(static_cast<uint64_t*>(pointer(operation.address)), operation.value,
                       __ATOMIC_RELEASE);
    else
      __atomic_store_n(static_cast<uint32_t*>(pointer(operation.address)),
                       static_cast<uint32_t>(operation.value), __ATOMIC_RELEASE);
  });
}

Code look(const MemoryOperation& operation, const Device& device) {
  constexpr const char* kFunction = "cuStreamBatchMemOp_v2";
  const int which = operation.operation;
  if (which != 1 && which != 2 && which != 4 && which != 5)
    return refuse(kFunction, kInvalidValue, "operation %d", which);
  int wide = 0;
  attribute(122, &wide, device);
  if (is_wide(operation) && !wide) return refuse(kFunction, kNotSupported, "values of 64 bits");
  const uint64_t bytes = is_wide(operation) ? 8 : 4;
  if (operation.address % bytes || operation.flags > (is_wait(operation) ? 2u : 1u))
    return refuse(kFunction, kInvalidValue, "address %llx, flags %u", operation.address,
                  operation.flags);
  const Kind kind = memory().kind(operation.address, bytes, device, !is_wait(operation));
  if (kind == Kind::device || kind == Kind::registered) return kSuccess;
  return refuse(kFunction, kInvalidValue, "%llx is neither memory of the device nor registered",
                operation.address);
}

}  // namespace

extern "C" {

Code cuMemcpyAsync(DevicePointer destination, DevicePointer source, size_t bytes,
                   StreamHandle handle) {
  if (const Code code = enter("cuMemcpyAsync", Needs::context)) return code;
  const auto stream = stream_of(handle);
  if (!stream) return refuse("cuMemcpyAsync", kInvalidHandle, "stream %p", handle);
  if (const Code code = usable("cuMemcpyAsync", stream)) return code;
  if (!bytes) return kSuccess;
  bool waits = false, host_source = false;
  const Copy copy{destination, source, bytes};
  Device& device = stream->device;
  if (const Code code = look("cuMemcpyAsync", copy, device, &waits, &host_source)) return code;
  if (host_source && !waits) {
    const auto* const first = static_cast<const char*>(pointer(source));
    const auto work = [copy, &device, staged = std::vector<char>(first, first + bytes)] {
      return memory().touch(device, copy.destination, 0, copy.bytes, [&] {
        std::memcpy(pointer(copy.destination), staged.data(), staged.size());
      });
    };
    submit(stream, {}, work, {{destination, bytes}});
    return kSuccess;
  }
  const Ticket put =
      submit(stream, {}, [copy, &device] { return run(copy, device); }, ranges({copy}));
  if (waits) occupy("cuMemcpyAsync", put);
  return kSuccess;
}

Code cuMemcpyBatchAsync(DevicePointer* destinations, DevicePointer* sources, size_t* sizes,
                        size_t count, CopyAttributes* attributes, size_t* begins,
                        size_t attribute_count, size_t* failed, StreamHandle stream) {
  if (const Code code = enter("cuMemcpyBatchAsync")) return code;
  if (failed) *failed = SIZE_MAX;
  return checked_batch("cuMemcpyBatchAsync", destinations, sources, sizes, count, attributes,
                       begins, attribute_count, stream);
}

Code cuMemcpyBatchAsync_v2(DevicePointer* destinations, DevicePointer* sources, size_t* sizes,
                           size_t count, CopyAttributes* attributes, size_t* begins,
                           size_t attribute_count, StreamHandle stream) {
  if (const Code code = enter("cuMemcpyBatchAsync_v2")) return code;
  return checked_batch("cuMemcpyBatchAsync_v2", destinations, sources, sizes, count, attributes,
                       begins, attribute_count, stream);
}

Code cuMemsetD8Async(DevicePointer address, unsigned char value, size_t bytes,
                     StreamHandle handle) {
  if (const Code code = enter("cuMemsetD8Async", Needs::context)) return code;
  const auto stream = stream_of(handle);
  if (!stream) return refuse("cuMemsetD8Async", kInvalidHandle, "stream %p", handle);
  if (const Code code = usable("cuMemsetD8Async", stream)) return code;
  if (!bytes) return kSuccess;
  Device& device = stream->device;
  const Kind kind = memory().kind(address, bytes, device, true);
  if (kind != Kind::device && kind != Kind::registered)
    return refuse("cuMemsetD8Async", kInvalidValue, "%zu bytes at %llx", bytes, address);
  const auto work = [=, &device] {
    return memory().touch(device, address, 0, bytes,
                          [&] { std::memset(pointer(address), value, bytes); });
  };
  submit(stream, {}, work, {{address, bytes}});
  return kSuccess;
}

Code cuStreamBatchMemOp_v2(StreamHandle handle, unsigned count, MemoryOperation* operations,
                           unsigned flags) {
  if (const Code code = enter("cuStreamBatchMemOp_v2")) return code;
  const auto stream = stream_of(handle);
  if (!stream || !count || count >= 256 || !operations || flags)
    return refuse("cuStreamBatchMemOp_v2", kInvalidValue, "%u operations on stream %p", count,
                  handle);
  if (const Code code = usable("cuStreamBatchMemOp_v2", stream)) return code;
  Device& device = stream->device;
  std::vector<Range> touched;
  for (unsigned i = 0; i < count; i++) {
    if (const Code code = look(operations[i], device)) return code;
    touched.push_back({operations[i].address, is_wide(operations[i]) ? 8u : 4u});
  }
  const auto work = [all = std::vector<MemoryOperation>(operations, operations + count), &device,
                     &on = *stream] {
    for (const MemoryOperation& operation : all)
      if (const Code code = run(operation, device, on)) return code;
    return Code{kSuccess};
  };
  submit(stream, {}, work, std::move(touched));
  return kSuccess;
}

}  // extern "C"
