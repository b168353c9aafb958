// Calls that were made before: everything about a call except its buffers and its scale, made once.
// An operation holds the kept call that it runs, so a kept call that is dropped meanwhile lives
// until the operation ends.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "comm/store_trial.h"
#include "engine/operation.h"
#include "plan/plan.h"

namespace fsccl {

struct CallKey {
  uint64_t count = ~uint64_t{0};
  uint64_t type = 0;  // dtype and operator
  uint64_t what = 0;  // operation and root
  bool operator==(const CallKey&) const = default;
};

struct KeptCall : std::enable_shared_from_this<KeptCall> {
  CallKey key;
  Plan plan, fallback;
  OperationSettings settings;
  Fingerprint fingerprint;
  uint64_t bytes_read = 0, bytes_written = 0;
  uint64_t input_bytes = 0, output_bytes = 0;
  int64_t in_place = 0;                         // input - output if the two may overlap
  std::vector<uint64_t> counts, displacements;  // the v forms have them
  // The plan's scratch memory. One is enough, because operations run one after the other.
  std::unique_ptr<std::byte[]> scratch;
  std::shared_ptr<StoreTrial> trial;  // chooses the stores of large calls; others have none
  bool by_hosts = false;              // the call runs in two levels (hierarchy.h) if it can
  // `small` says that a call of `plan` may take the fast path, `small_fallback` that a call of the
  // fallback plan may, if it is foreseen that buffers cannot be touched.
  bool small = false, small_fallback = false;

  // Returns about how much memory the kept call takes.
  uint64_t memory() const {
    return sizeof *this + plan.memory() + fallback.memory() +
           (counts.capacity() + displacements.capacity()) * sizeof(uint64_t);
  }
};

class KeptCalls {
 public:
  // Plans grow with the number of ranks, so both the calls and their memory are limited.
  static constexpr size_t kMost = 4096;
  static constexpr uint64_t kMostMemory = 32u << 20;

  // Returns the kept call with this key if it has no parts and was used lately, or null.
  const KeptCall* recent(const CallKey& key) const {
    const Recent& one = recent_[place_of(key)];
    return one.key == key ? one.call : nullptr;
  }
  // Returns the kept call with this key and these parts, or null.
  const KeptCall* find(const CallKey& key, const std::vector<uint64_t>& counts,
                       const std::vector<uint64_t>& displacements) {
    const auto [first, last] = calls_.equal_range(hash_of(key, counts, displacements));
    for (auto found = first; found != last; ++found) {
      const KeptCall& call = *found->second;
      if (call.key == key && call.counts == counts && call.displacements == displacements)
        return &used(call);
    }
    return nullptr;
  }
  // Keeps a call. If that would be too many, all others are dropped first.
  const KeptCall& keep(std::shared_ptr<const KeptCall> call) {
    const uint64_t memory = call->memory();
    if (calls_.size() >= kMost || memory_ + memory > kMostMemory) {
      calls_.clear();
      recent_.fill({});
      memory_ = 0;
    }
    memory_ += memory;
    const uint64_t hash = hash_of(call->key, call->counts, call->displacements);
    return used(*calls_.emplace(hash, std::move(call))->second);
  }
  size_t size() const { return calls_.size(); }

 private:
  static constexpr size_t kRecent = 64;
  struct Recent {
    CallKey key;
    const KeptCall* call = nullptr;
  };
  static size_t place_of(const CallKey& key) {
    return (key.count ^ key.count >> 12 ^ key.what >> 30 ^ key.type >> 32) % kRecent;
  }
  const KeptCall& used(const KeptCall& call) {
    if (call.counts.empty()) recent_[place_of(call.key)] = {call.key, &call};
    return call;
  }
  static uint64_t hash_of(const CallKey& key, const std::vector<uint64_t>& counts,
                          const std::vector<uint64_t>& displacements) {
    uint64_t hash = mix_hash(mix_hash(key.count, key.type), key.what);
    for (const std::vector<uint64_t>* values : {&counts, &displacements})
      for (const uint64_t value : *values) hash = mix_hash(hash, value);
    return hash;
  }

  std::array<Recent, kRecent> recent_;
  std::unordered_multimap<uint64_t, std::shared_ptr<const KeptCall>> calls_;
  uint64_t memory_ = 0;  // memory of all kept calls
};

}  // namespace fsccl
