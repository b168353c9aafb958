// The registration of a channel's memory for puts and gets: its mirrors, registered with UCX once,
// and keys to the mirrors of its other ranks.
//
// Invariants. A key is given to a rank for one channel. The rank gives the key back when it has
// closed that channel and nothing of its own is in flight any more. Until all keys have come back
// the memory stays registered, whatever becomes of the channel. Memory to which a dead rank has a
// key stays until the worker is gone: no rank writes into memory that has gone to others.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "transports/mirror/channel.h"
#include "transports/ucx/ucx_library.h"

namespace fsccl::ucx {

class Registration {
 public:
  // The state between this rank and a peer: each other's keys.
  struct Peer {
    ucp_rkey_h key = nullptr;  // to the peer's
    uint64_t base = 0;         // where it begins there
    uint32_t under_way = 0;    // transfers that use it
    uint32_t lent = 0;         // keys to ours that it has not given back
    bool holds = false;        // it said so of one of them
    bool refused = false;      // it cannot use them
  };

  // Registers; if that cannot be, usable() is false.
  Registration(const UcxLibrary& ucx, ucp_context_h context,
               std::shared_ptr<mirror::Mirrors> memory, uint64_t tag);
  ~Registration();
  Registration(const Registration&) = delete;

  bool usable() const { return handle_ != nullptr; }
  ucs_status_t problem() const { return problem_; }
  ucp_mem_h handle() const { return handle_; }
  uint64_t tag() const { return tag_; }
  const std::vector<uint8_t>& key() const { return key_; }  // as it is told to peers
  uint64_t base() const { return reinterpret_cast<uint64_t>(memory_->at(0)); }
  uint64_t bytes() const { return memory_->bytes(); }
  Peer& peer(int rank) { return peers_[rank]; }
  // Returns where a peer has what lies at `place` here: the mirrors of a channel are the same on
  // all ranks. `place` lies in them.
  uint64_t there(const Peer& peer, const std::byte* place) const {
    return peer.base + (reinterpret_cast<uint64_t>(place) - base());
  }

  // The channel is closed.
  void close() { closed_ = true; }
  bool closed() const { return closed_; }
  // The ranks whose keys are to be given back now; their keys are destroyed.
  std::vector<int> give_back();
  void destroy_keys();  // before the worker goes
  bool over() const;    // nobody has, or will have, to do with this memory

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
