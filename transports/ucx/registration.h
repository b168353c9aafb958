// The registration of a channel's memory for puts and gets: its mirrors, which are registered with
// UCX once, and keys to the mirrors of its other ranks.
//
// Invariants. A rank gets a key for one channel. It gives the key back when it has closed that
// channel and none of its own transfers is in flight. The memory stays registered until all keys
// have been given back, even if the channel is closed. If a dead rank has a key, the memory stays
// until the worker ends. So no rank writes into memory that belongs to others.
//
// Memory is registered when something is first put or got. If it cannot be registered, or the two
// ranks have different versions of UCX, bytes travel in active messages, and the log says so.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "transports/mirror/channel.h"
#include "transports/ucx/ucx_library.h"

namespace fsccl::ucx {

class Registration {
 public:
  // The keys that this rank and a peer have of each other.
  struct Peer {
    ucp_rkey_h key = nullptr;  // the key to the peer's mirrors
    uint64_t base = 0;         // the address there at which they begin
    uint32_t under_way = 0;    // the number of transfers that use the key
    uint32_t lent = 0;         // the number of our keys that the peer has not given back
    bool holds = false;        // the peer has said that it has one of them
    bool refused = false;      // the peer cannot use them
  };

  // Registers the memory. If that is not possible, usable() is false.
  Registration(const UcxLibrary& ucx, ucp_context_h context,
               std::shared_ptr<mirror::Mirrors> memory, uint64_t tag);
  ~Registration();
  Registration(const Registration&) = delete;

  bool usable() const { return handle_ != nullptr; }
  ucs_status_t problem() const { return problem_; }
  ucp_mem_h handle() const { return handle_; }
  uint64_t tag() const { return tag_; }
  const std::vector<uint8_t>& key() const { return key_; }  // the key in the form for peers
  uint64_t base() const { return reinterpret_cast<uint64_t>(memory_->at(0)); }
  uint64_t bytes() const { return memory_->bytes(); }
  Peer& peer(int rank) { return peers_[rank]; }
  // Returns the address at which a peer has what lies at `place` here. The mirrors of a channel are
  // the same on all ranks, and `place` lies in them.
  uint64_t there(const Peer& peer, const std::byte* place) const {
    return peer.base + (reinterpret_cast<uint64_t>(place) - base());
  }

  // Notes that the channel is closed.
  void close() { closed_ = true; }
  bool closed() const { return closed_; }
  // Destroys the keys that are to be given back now, and returns the ranks that get them.
  std::vector<int> give_back();
  void destroy_keys();  // is called before the worker ends
  bool over() const;    // returns true if no rank has, or will have, a use for this memory

 private:
  const UcxLibrary& ucx_;
  const ucp_context_h context_;
  const std::shared_ptr<mirror::Mirrors> memory_;
  const uint64_t tag_;
  ucp_mem_h handle_ = nullptr;
  ucs_status_t problem_ = UCS_OK;
  std::vector<uint8_t> key_;
  std::map<int, Peer> peers_;  // by rank of the job
  bool closed_ = false;
};

}  // namespace fsccl::ucx
