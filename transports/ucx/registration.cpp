#include "transports/ucx/registration.h"

#include <algorithm>

#include "base/write_file.h"

namespace fsccl::ucx {

Registration::Registration(const UcxLibrary& ucx, ucp_context_h context,
                           std::shared_ptr<mirror::Mirrors> memory, uint64_t tag)
    : ucx_(ucx), context_(context), memory_(std::move(memory)), tag_(tag) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = memory_->at(0);
  params.length = memory_->bytes();
  {
    const FileSignalsHeld held;
    problem_ = ucx_.mem_map(context_, &params, &handle_);
  }
  if (problem_ != UCS_OK) {
    handle_ = nullptr;
    return;
  }
  void* key = nullptr;
  size_t bytes = 0;
  problem_ = ucx_.rkey_pack(context_, handle_, &key, &bytes);
  if (problem_ != UCS_OK) {
    ucx_.mem_unmap(context_, std::exchange(handle_, nullptr));
    return;
  }
  key_.assign(static_cast<uint8_t*>(key), static_cast<uint8_t*>(key) + bytes);
  ucx_.rkey_buffer_release(key);
}

Registration::~Registration() {
  destroy_keys();
  if (handle_) ucx_.mem_unmap(context_, handle_);
}

void Registration::destroy_keys() {
  for (auto& [rank, peer] : peers_)
    if (peer.key) ucx_.rkey_destroy(std::exchange(peer.key, nullptr));
}

std::vector<int> Registration::give_back() {
  std::vector<int> ranks;
  for (auto& [rank, peer] : peers_)
    if (closed_ && peer.key && peer.under_way == 0) {
      ucx_.rkey_destroy(std::exchange(peer.key, nullptr));
      ranks.push_back(rank);
    }
  return ranks;
}

bool Registration::over() const {
  return closed_ && std::all_of(peers_.begin(), peers_.end(), [](const auto& one) {
           const Peer& peer = one.second;
           return !peer.key && peer.under_way == 0 && peer.lent == 0;
         });
}

}  // namespace fsccl::ucx
