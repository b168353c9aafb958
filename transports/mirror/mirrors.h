// The memory of mirrors, and the sizes of slots and rings.
#pragma once
#include <cstddef>
#include <memory>

#include "base/status.h"

namespace fsccl::mirror {

// Anonymous memory for the ring of each rank. Pages exist when they are first written.
class Mirrors {
 public:
  static constexpr size_t kPage = 4096;

  static Result<std::shared_ptr<Mirrors>> make(size_t bytes);
  Mirrors(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {}
  ~Mirrors();
  Mirrors(const Mirrors&) = delete;
  std::byte* at(size_t offset) const { return base_ + offset; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  size_t bytes_;
};

inline constexpr size_t kPairSlotBytes = 64u << 10;  // the most bytes of a slot of a pair
// Returns the slot size of a channel of so many ranks whose transport moves messages of up to
// `most` bytes well. It is used if the opener asks for no other size.
size_t chosen_slot_bytes(size_t ranks, size_t most);
// Returns the bytes of a ring of a channel of so many ranks, with slots of so many bytes, and with
// room for smaller ones (transport.h).
size_t ring_bytes_of(size_t slot_bytes, size_t ranks);

}  // namespace fsccl::mirror
