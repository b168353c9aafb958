#include "api/group.h"

#include <utility>
#include <vector>

using namespace fsccl;

namespace fsccl {
namespace {

struct Group {
  std::vector<fsccl_work_t> works;
  std::vector<DeviceCollectives::Grouped> on_device;
  std::vector<uint64_t> handles;  // handles of the communicators of `on_device`
};
thread_local Group group;

}  // namespace

// g++ does not take the model over from the declaration.
[[gnu::tls_model("local-dynamic")]] constinit thread_local int group_depth = 0;
void add_to_group(fsccl_work_t work) noexcept { group.works.push_back(work); }
void make_room_in_group() {
  group.works.emplace_back();
  group.works.pop_back();
}
void add_to_group(DeviceCollectives::Grouped calls) {
  group.handles.reserve(group.handles.size() + 1);
  group.on_device.push_back(std::move(calls));
  group.handles.push_back(group.on_device.back().comm->engine().key());
}

namespace {

// Runs the calls on device memory. Their communicators stay meanwhile, also if another thread
// destroys one; those that are gone already have no calls any more.
Status run_on_device(Group&& ended) {
  std::vector<Ref<Communicator>> used;
  std::vector<DeviceCollectives::Grouped> calls;
  Status gone;
  for (size_t i = 0; i < ended.on_device.size(); i++) {
    Result<Ref<Communicator>> comm = comm_of(reinterpret_cast<fsccl_comm_t>(ended.handles[i]));
    if (!comm.ok()) {
      if (gone.ok()) gone = comm.take_status();
      continue;
    }
    used.push_back(comm.take());
    calls.push_back(std::move(ended.on_device[i]));
  }
  Status ran = calls.empty() ? success() : DeviceCollectives::run_group(calls);
  return ran.ok() ? std::move(gone) : std::move(ran);
}

}  // namespace
}  // namespace fsccl

extern "C" {

fsccl_status_t fsccl_group_start(void) {
  if (forked()) return record_error("fsccl_group_start", forked_status());
  group_depth++;
  return FSCCL_OK;
}

fsccl_status_t fsccl_group_end(void) {
  if (forked()) return record_error("fsccl_group_end", forked_status());
  if (group_depth == 0)
    return record_error(
        "fsccl_group_end",
        fail(FSCCL_ERR_INVALID_STATE, "there is no group to end: fsccl_group_start() begins one"));
  if (--group_depth > 0) return FSCCL_OK;
  Group ended = std::exchange(group, {});
  const std::vector<fsccl_work_t> works = std::move(ended.works);
  fsccl_status_t code = FSCCL_OK;
  if (!ended.on_device.empty())
    code = guarded("fsccl_group_end", [&] { return run_on_device(std::move(ended)); });
  // All operations are waited for even if one has failed, because the library uses the buffers
  // until then. The first error becomes the caller's last error.
  fsccl_work_t failed = 0;
  for (const fsccl_work_t work : works)
    if (fsccl_work_wait(work, -1) < 0 && !failed) failed = work;
  return failed ? fsccl_work_wait(failed, 0) : code;
}

}  // extern "C"
