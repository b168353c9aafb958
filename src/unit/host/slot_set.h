// The slots of a unit that have one role, in one part of its pool: one slot for all parameters, or
// one for each parameter (SlotMap). All ranks take slots and give them back in the same order, that
// of the program. A slot of 0 bytes counts as held, but the pool does not know it.
#pragma once
#include <vector>

#include "layout/layout.h"
#include "pool/host/host_pool.h"

namespace fsccl {

class SlotSet {
 public:
  enum class Role : uint8_t { parameters, gradients };
  // The low bits of a key have the slot's index and role. The unit's key lies above them.
  static constexpr unsigned kIndexBits = 21;

  SlotSet() = default;
  // `engine` is that of the ranks that take the slots together.
  SlotSet(HostPool& pool, Engine& engine, PartKind part, int owner_rank, uint64_t unit_key,
          Role role, std::vector<uint64_t> bytes);

  size_t size() const { return bytes_.size(); }
  PartKind part() const { return part_; }
  int owner_rank() const { return owner_rank_; }
  bool stable() const { return role_ == Role::parameters; }
  uint64_t key(size_t k) const {
    return unit_key_ << kIndexBits | k << 1 | (role_ == Role::gradients ? 1 : 0);
  }
  uint64_t bytes(size_t k) const { return bytes_[k]; }
  uint64_t total_bytes() const;
  bool held(size_t k) const { return held_[k]; }
  bool any_held() const { return held_count_ > 0; }

  // These return the position that every rank must have released before the slots are written.
  Result<uint64_t> take(size_t k, const HostPool::Requester& requester);
  Result<uint64_t> take_all(const HostPool::Requester& requester);  // takes all slots or none
  Status give_back(size_t k, uint64_t position);
  Status give_back_all(uint64_t position);  // gives back all slots that are held
  void abandon();                           // gives back all slots, which are no longer used

  // Debug mode: checks that the program did not write beyond a slot that is held.
  Status intact(size_t k) const;

  void withdrawn();  // the pool has taken back the kept slot

  // These return the offset and the address of a slot that was taken.
  uint64_t offset(size_t k) const { return offset_[k]; }
  std::byte* base(size_t k) const { return pool_->address(part_, owner_rank_, offset_[k]); }

 private:
  HostPool* pool_ = nullptr;
  Engine* engine_ = nullptr;
  PartKind part_{};
  int owner_rank_ = 0;
  uint64_t unit_key_ = 0;
  Role role_{};
  const HostPool::SlotName& name(size_t k) {
    if (!names_[k].of) [[unlikely]]
      names_[k] = pool_->name_of(key(k));
    return names_[k];
  }

  std::vector<uint64_t> bytes_, offset_;
  std::vector<HostPool::SlotName> names_;  // names of slots that were taken
  std::vector<bool> held_;
  size_t held_count_ = 0;
};

}  // namespace fsccl
