// The table of a transport whose ranks mirror each other's slots: all of it but how it is joined.
#pragma once
#include "transports/mirror/node.h"

namespace fsccl::mirror {

using Available = int (*)(char* why, size_t capacity);
using Join = Result<std::unique_ptr<Node>> (*)(const fsccl_transport_job_t& job);

fsccl_status_t hand_over(Result<std::unique_ptr<Node>> made, void** node, unsigned char* endpoint,
                         size_t* address_bytes, char* error, size_t capacity);

// Without join. Moves by address, unless who calls says otherwise (keeps_pages).
fsccl_transport_ops_t table(const char* name, Available available);

template <Join join>
fsccl_transport_ops_t table(const char* name, Available available) {
  fsccl_transport_ops_t made = table(name, available);
  made.join = [](const fsccl_transport_job_t* job, void** node, unsigned char* endpoint,
                 size_t* address_bytes, char* error, size_t capacity) {
    return hand_over(join(*job), node, endpoint, address_bytes, error, capacity);
  };
  return made;
}

}  // namespace fsccl::mirror
