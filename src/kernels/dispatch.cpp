// The functions of kernels.h. Each checks whether the call is supported, and calls the function of
// the chosen instruction set's table with the variant that was chosen for the pass. The tables are
// built once, on the first call of the process. A choice never changes after it is published, and
// is never freed, because a kernel may be running with it.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/float_mode.h"
#include "kernels/kernel_table.h"
#include "kernels/kernels.h"

namespace fsccl {
namespace {

// A choice of variants, with the tables of their instruction sets.
struct Kernels {
  struct Kernel {
    const KernelTable* table;
    Variant variant;
  };
  const KernelTable* best;  // for copies that have no variants
  Kernel unfenced;          // for casts
  std::array<Kernel, kPasses> ways;
  KernelChoice choice;
  const Kernels* next = nullptr;  // links all choices that were ever made

  const Kernel& way(Pass pass) const { return ways[static_cast<size_t>(pass)]; }
};

constinit std::atomic<const Kernels*> current{nullptr};

// For fewer bytes than these, streaming stores cost more than they save. The first limit holds for
// stores that a fence ends, the second for those without.
constexpr size_t kLeastStreamingBytes = 1024, kLeastUnfencedBytes = 256;

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

KernelTable build_table(int64_t target) {
  KernelTable table = {};
  table.target = target_name(target);
  install_copy(table, target);
  install_cast(table, target);
  install_sum(table, target);
  install_general(table, target);
  return table;
}

// The tables of every instruction set that this machine has, the best one first (a lower bit is
// better). They are not on the heap, because the first call may come when memory is short.
struct Tables {
  static constexpr size_t kMost = 8;
  std::array<KernelTable, kMost> all;
  std::array<const char*, kMost> names;
  size_t count = 0;

  Tables() {
    for (int64_t left = supported_targets(); left != 0 && count < kMost; left &= left - 1)
      add(left & -left);
  }
  void add(int64_t target) {
    all[count] = build_table(target);
    names[count] = all[count].target;
    count++;
  }
};
const Tables& tables() {
  static const Tables all;
  return all;
}

Kernels::Kernel way_of(Chosen chosen) {
  return {&tables().all[chosen.set], variants::row(chosen.variant).variant};
}

Kernels make_kernels(const KernelChoice& choice, size_t best) {
  Kernels made;
  made.best = &tables().all[best];
  made.unfenced = {made.best, {Variant::Store::nontemporal}};
  made.choice = choice;
  std::transform(choice.begin(), choice.end(), made.ways.begin(), way_of);
  return made;
}

const Kernels& default_ways() {
  static const Kernels ways = make_kernels(default_kernels(), 0);
  return ways;
}

// Returns the Kernels of a choice. A choice that was made before is used again, so that their
// number does not grow. If there is no memory for a new one, the default is returned.
const Kernels& kernels_of(const KernelChoice& choice, size_t best) {
  static std::mutex mutex;
  static const Kernels* all = &default_ways();
  const std::lock_guard lock(mutex);
  for (const Kernels* known = all; known != nullptr; known = known->next)
    if (known->choice == choice && known->best == &tables().all[best]) return *known;
  auto* const fresh = new (std::nothrow) Kernels(make_kernels(choice, best));
  if (fresh == nullptr) return default_ways();
  fresh->next = all;
  return *(all = fresh);
}

[[gnu::cold, gnu::noinline]] const Kernels& first_use() {
  const Kernels* none = nullptr;
  // The exchange pairs with the loads here and in kernels(): a thread that sees the table sees its
  // contents.
  current.compare_exchange_strong(none, &default_ways(), std::memory_order_acq_rel);
  return *current.load(std::memory_order_acquire);
}

const Kernels& kernels() {
  // This load pairs with the stores of those who choose kernels: first_use(), use_kernels() and
  // kernels_use_target_for_test().
  const Kernels* chosen = current.load(std::memory_order_acquire);
  return chosen != nullptr ? *chosen : first_use();
}

void move_bytes(void* dst, const void* src, size_t bytes) {
#if defined(__x86_64__)
  asm volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(bytes) : : "memory");
#else
  std::memcpy(dst, src, bytes);
#endif
}

void copy_by(const Kernels::Kernel& way, void* dst, const void* src, size_t bytes) {
  if (way.variant.body == Variant::Body::lines)
    way.table->copy_as(dst, src, bytes, way.variant);
  else if (slow_to_move(dst, src, bytes))
    way.table->copy_lines(dst, src, bytes);
  else if (way.variant.body == Variant::Body::movsb)
    move_bytes(dst, src, bytes);
  else
    std::memcpy(dst, src, bytes);
}

bool cast_by(const Kernels::Kernel& way, void* dst, fsccl_dtype_t to, const void* src,
             fsccl_dtype_t from, size_t count) {
  const DefaultFloatMode mode;
  way.table->cast[float_index(to)][float_index(from)](dst, src, count, way.variant);
  return true;
}

// Returns the kernel with variants if it serves this call, a SUM of floats of a common pair of
// types, and null otherwise.
KernelTable::Sum sum_of(const Reduce& args, const KernelTable& table) {
  return dtype_float(args.from) && args.op <= FSCCL_OP_AVG
             ? table.sum[float_index(args.to)][float_index(args.from)]
             : nullptr;
}

bool reduce_by(const Kernels::Kernel& way, const Reduce& args) {
  const DefaultFloatMode mode;
  const KernelTable& table = *way.table;
  if (const KernelTable::Sum sum = sum_of(args, table)) {
    sum(args, way.variant);
    return true;
  }
  const bool wide = args.from == FSCCL_FLOAT64 || args.to == FSCCL_FLOAT64;
  table.general[!dtype_float(args.from) ? args.from
                : wide                  ? FSCCL_FLOAT64
                                        : FSCCL_FLOAT32](args, table);
  return true;
}

Stores worthwhile(Stores stores, size_t bytes) {
  return bytes < (stores == Stores::unfenced ? kLeastUnfencedBytes : kLeastStreamingBytes)
             ? Stores::cached
             : stores;
}

}  // namespace

// `rep movsb` may move single bytes, at a twentieth of its usual speed. AMD's processors do so
// where the destination lies up to 31 bytes further into a page than the source (measured on Zen 3;
// https://sourceware.org/bugzilla/show_bug.cgi?id=30994). This is common: malloc returns 128 KiB or
// more at 16 bytes into a page, and a slot begins a page.
bool slow_to_move(const void* dst, const void* src, size_t bytes) {
  const uintptr_t ahead =
      (reinterpret_cast<uintptr_t>(dst) - reinterpret_cast<uintptr_t>(src)) % 4096;
  return bytes >= kLeastMovedBytes && ahead > 0 && ahead < 32;
}

void copy_bytes(void* dst, const void* src, size_t bytes, Stores stores) {
  const Stores used = stores == Stores::cached ? stores : worthwhile(stores, bytes);
  if (used == Stores::cached) {
    if (bytes >= kLeastMovedBytes)
      copy_by(kernels().way(Pass::copy), dst, src, bytes);
    else if (bytes != 0)
      std::memcpy(dst, src, bytes);
  } else if (used == Stores::unfenced) {
    kernels().best->copy_streaming(dst, src, bytes);
  } else {
    copy_by(kernels().way(Pass::copy_past), dst, src, bytes);
    fence_stores();
  }
}

void fence_stores() { hwy::FlushStream(); }

void copy_between_cores(void* dst, const void* src, size_t bytes, Cores cores) {
  if (bytes < kLeastMovedBytes) {
    if (bytes) std::memcpy(dst, src, bytes);
  } else {
    const KernelTable& table = *kernels().best;
    (cores == Cores::near ? table.copy_near : table.copy_far)(dst, src, bytes);
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
    return true;
  }
  const Stores used = worthwhile(stores, bytes);
  const Kernels& chosen = kernels();
  const Kernels::Kernel& way = used == Stores::cached      ? chosen.way(Pass::cast)
                               : used == Stores::streaming ? chosen.way(Pass::cast_past)
                                                           : chosen.unfenced;
  return cast_by(way, dst, to, src, from, count);
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
  const bool past = args.stores != Stores::cached;
  const Pass pass = args.norm == nullptr ? past ? Pass::reduce_past : Pass::reduce
                    : past               ? Pass::reduce_norm_past
                                         : Pass::reduce_norm;
  return reduce_by(kernels().way(pass), args);
}

void copy_as(Chosen chosen, void* dst, const void* src, size_t bytes) {
  if (bytes != 0) copy_by(way_of(chosen), dst, src, bytes);
  fence_stores();
}

bool cast_as(Chosen chosen, void* dst, fsccl_dtype_t to, const void* src, fsccl_dtype_t from,
             size_t count) {
  return to != from && cast_supported(to, from) &&
         cast_by(way_of(chosen), dst, to, src, from, count);
}

bool reduce_as(Chosen chosen, const Reduce& args) {
  return reduce_supported(args.from, args.to, args.op) && args.n >= 1 && args.divisor >= 1 &&
         reduce_by(way_of(chosen), args);
}

std::span<const char* const> instruction_sets() {
  return std::span(tables().names).first(tables().count);
}

void use_kernels(const KernelChoice& choice) {
  KernelChoice taken = default_kernels();
  for (size_t pass = 0; pass < kPasses; pass++)
    if (usable(Pass(pass), choice[pass])) taken[pass] = choice[pass];
  // This store pairs with the load in kernels().
  current.store(&kernels_of(taken, 0), std::memory_order_release);
}

KernelChoice kernels_in_use() { return kernels().choice; }

const char* kernels_target() { return kernels().best->target; }

bool kernels_use_target_for_test(const char* target) {
  const auto sets = instruction_sets();
  const auto found =
      target == nullptr ? sets.begin() : std::find_if(sets.begin(), sets.end(), [&](auto* set) {
        return std::strcmp(set, target) == 0;
      });
  if (found == sets.end()) return false;
  const auto set = static_cast<uint8_t>(found - sets.begin());
  KernelChoice choice = default_kernels();
  for (Chosen& chosen : choice) chosen.set = set;
  // This store pairs with the load in kernels().
  current.store(&kernels_of(choice, set), std::memory_order_release);
  return true;
}

}  // namespace fsccl
