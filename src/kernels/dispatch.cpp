// The front doors of kernels.h: they check what is supported and follow a pointer into the table of
// the chosen instruction set. The table is built once, on the first call of the process, and never
// changes after it is published.
#include <atomic>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/kernel_table.h"
#include "kernels/kernels.h"

namespace fsccl {
namespace {

constinit std::atomic<const KernelTable*> current_table{nullptr};

// Below these streaming stores cost more than they can save: with a fence, which is what one would
// measure, and without.
constexpr size_t kLeastStreamingBytes = 1024, kLeastUnfencedBytes = 256;
// From here on glibc's memcpy moves single bytes (rep movsb) where processors say that they do that
// fast; of lines from another core it then waits for each.
constexpr size_t kLeastMovedBytes = 2113;

const char* target_name(int64_t target) {
  switch (target) {
    case HWY_AVX3:
      return "avx3";
    case HWY_AVX2:
      return "avx2";
    case HWY_SSE4:
      return "sse4";
    case HWY_NEON:
      return "neon";
    case HWY_EMU128:
    case HWY_SCALAR:
      return "portable";
    default:
      return hwy::TargetName(target);
  }
}

// The best of `targets`: a lower bit is better.
int64_t best_target(int64_t targets) {
  const int64_t usable = targets & HWY_TARGETS;
  return usable == 0 ? HWY_STATIC_TARGET : usable & -usable;
}

KernelTable build_table() {
  KernelTable table = {};
  table.target = target_name(best_target(hwy::SupportedTargets()));
  install_copy(table);
  install_cast(table);
  install_sum(table);
  install_general(table);
  return table;
}

[[gnu::cold, gnu::noinline]] const KernelTable& first_use() {
  static const KernelTable table = build_table();
  current_table.store(&table, std::memory_order_release);
  return table;
}

const KernelTable& kernels() {
  const KernelTable* table = current_table.load(std::memory_order_acquire);
  return table != nullptr ? *table : first_use();
}

Stores worthwhile(Stores stores, size_t bytes) {
  return bytes < (stores == Stores::unfenced ? kLeastUnfencedBytes : kLeastStreamingBytes)
             ? Stores::cached
             : stores;
}

}  // namespace

// A processor that moves bytes may do it one by one, at a twentieth of what it can: AMD's do where
// the destination lies up to 31 bytes further into a page than the source (measured on Zen 3;
// https://sourceware.org/bugzilla/show_bug.cgi?id=30994). So does what malloc returns from 128 KiB
// on, 16 bytes into a page, beside a slot, which begins a page.
bool slow_to_move(const void* dst, const void* src, size_t bytes) {
  const uintptr_t ahead =
      (reinterpret_cast<uintptr_t>(dst) - reinterpret_cast<uintptr_t>(src)) % 4096;
  return bytes >= kLeastMovedBytes && ahead > 0 && ahead < 32;
}

void copy_bytes(void* dst, const void* src, size_t bytes, Stores stores) {
  if (bytes == 0) return;
  if (worthwhile(stores, bytes) != Stores::cached) {
    kernels().copy_streaming(dst, src, bytes);
    if (stores == Stores::streaming) fence_stores();
  } else if (slow_to_move(dst, src, bytes)) {
    kernels().copy_lines(dst, src, bytes);
  } else {
    std::memcpy(dst, src, bytes);
  }
}

void fence_stores() { hwy::FlushStream(); }

void copy_between_cores(void* dst, const void* src, size_t bytes, Cores cores) {
  if (bytes < kLeastMovedBytes) {
    if (bytes) std::memcpy(dst, src, bytes);
  } else {
    (cores == Cores::near ? kernels().copy_near : kernels().copy_far)(dst, src, bytes);
  }
}

bool cast_supported(fsccl_dtype_t to, fsccl_dtype_t from) {
  return dtype_valid(to) && dtype_valid(from) &&
         (to == from || (dtype_float(to) && dtype_float(from)));
}

bool cast(void* dst, fsccl_dtype_t to, const void* src, fsccl_dtype_t from, size_t count,
          Stores stores) {
  if (!cast_supported(to, from)) return false;
  const size_t bytes = count * dtype_size(to);
  if (to == from) {
    copy_bytes(dst, src, bytes, stores);
  } else {
    kernels().cast[float_index(to)][float_index(from)](dst, src, count, worthwhile(stores, bytes));
  }
  return true;
}

bool reduce_supported(fsccl_dtype_t from, fsccl_dtype_t to, fsccl_op_kind_t op) {
  if (!dtype_valid(from) || !dtype_valid(to) || op < FSCCL_OP_SUM || op > FSCCL_OP_PREMUL_SUM)
    return false;
  if (dtype_float(from) && dtype_float(to)) return true;
  return from == to && !dtype_bytes_only(from) && op != FSCCL_OP_PREMUL_SUM;
}

bool reduce(const Reduce& args) {
  if (!reduce_supported(args.from, args.to, args.op) || args.n < 1 || args.divisor < 1)
    return false;
  const KernelTable& table = kernels();
  if (!dtype_float(args.from)) {
    table.general[args.from](args, table);
    return true;
  }
  const KernelTable::Sum sum = table.sum[float_index(args.to)][float_index(args.from)];
  if (args.op <= FSCCL_OP_AVG && sum != nullptr) {
    sum(args);
  } else {
    const bool wide = args.from == FSCCL_FLOAT64 || args.to == FSCCL_FLOAT64;
    table.general[wide ? FSCCL_FLOAT64 : FSCCL_FLOAT32](args, table);
  }
  return true;
}

const char* kernels_target() { return kernels().target; }

bool kernels_use_target_for_test(const char* target) {
  static KernelTable table;
  hwy::SetSupportedTargetsForTest(0);
  const int64_t all = hwy::SupportedTargets();
  int64_t chosen = target == nullptr ? all : 0;
  for (int64_t rest = all & HWY_TARGETS; target != nullptr && rest != 0; rest &= rest - 1) {
    if (std::strcmp(target, target_name(rest & -rest)) == 0) chosen = rest & -rest;
  }
  if (chosen == 0) return false;
  hwy::SetSupportedTargetsForTest(chosen);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  table = build_table();
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  current_table.store(&table, std::memory_order_release);
  return true;
}

}  // namespace fsccl
