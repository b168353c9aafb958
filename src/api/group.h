// The start and end of a group. In between, operations of this thread that would block are only
// submitted, and the end waits for all of them. Therefore a thread that drives several
// communicators, or sends and receives in a ring, cannot deadlock on the order of its own calls.
#pragma once
#include "api/objects.h"
#include "comm/device/collectives.h"

namespace fsccl {

// The groups that this thread has started and not ended.
// By the local-dynamic model a call finds this and Pins::mine with one look-up. The model is for
// variables that only the library itself uses.
[[gnu::visibility("hidden"), gnu::tls_model("local-dynamic")]]
extern constinit thread_local int group_depth;
inline bool grouped() { return group_depth > 0; }
// Remembers a submitted operation for the end of the group. Takes no memory, because
// make_room_in_group() was called before the operation was submitted.
void add_to_group(fsccl_work_t work) noexcept;
void make_room_in_group();
// Adds a call on device memory, which the end of the group enqueues with the others.
void add_to_group(DeviceCollectives::Grouped calls);

}  // namespace fsccl
